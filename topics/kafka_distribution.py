"""Apache Kafka's own jars, fetched once with Maven into a cache, and the Java that runs them.

Knows where the cache is, which Java and Maven are on this machine, and which versions belong together. Does not
know how a broker is configured or run (`topics.local_broker`).
"""

import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

__all__ = [
    "KAFKA_VERSION",
    "LOG4J_VERSION",
    "BrokerError",
    "KafkaFetchFailedError",
    "KafkaToolMissingError",
    "cache_root",
    "find_java",
    "kafka_jars",
]

KAFKA_VERSION = "4.1.1"
LOG4J_VERSION = "2.24.3"
"""The log4j that Kafka 4.1.1 brings. Its SLF4J binding must be of the same version, or there is no log file."""

MINIMUM_JAVA = 17

_FETCH_TIMEOUT_S = 600.0
_ALTERNATIVES = "or use Docker ('docker compose up'), or set HEADRACE_KAFKA__BOOTSTRAP_SERVERS to a broker of your own"

_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>headrace</groupId>
  <artifactId>local-broker</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-slf4j-impl</artifactId>
      <version>{LOG4J_VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""


class BrokerError(Exception):
    """A local broker can't be had: the root of this module's errors and of `topics.local_broker`'s."""


class KafkaToolMissingError(BrokerError):
    """Java or Maven is not on this machine, or too old. The message says which package brings it."""


class KafkaFetchFailedError(BrokerError):
    """Maven could not bring the jars. The message ends with Maven's own words."""


def cache_root() -> Path:
    """Headrace's cache folder: `$HEADRACE_CACHE_DIR`, else `$XDG_CACHE_HOME/headrace`, else `~/.cache/headrace`."""
    if own := os.environ.get("HEADRACE_CACHE_DIR"):
        return Path(own).expanduser().absolute()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser().absolute() / "headrace"
    return Path.home() / ".cache" / "headrace"


def find_java() -> Path:
    """The `java` of `$JAVA_HOME`, else of the PATH. Raises `KafkaToolMissingError` unless it is 17 or newer."""
    remedy = (
        f"install it (Debian: apt-get install default-jre-headless; macOS: brew install openjdk@17), {_ALTERNATIVES}"
    )
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    found = found or shutil.which("java")
    if found is None:
        raise KafkaToolMissingError(
            f"the local Kafka needs Java {MINIMUM_JAVA} or newer, and there is no java on the PATH: {remedy}"
        )
    version = _java_major(found)
    if version is None or version < MINIMUM_JAVA:
        # macOS has a stub of that name, which runs nothing.
        stated = "does not run" if version is None else f"is Java {version}"
        raise KafkaToolMissingError(
            f"the local Kafka needs Java {MINIMUM_JAVA} or newer, and {found} {stated}: {remedy}"
        )
    return Path(found)


def _java_major(java: str) -> int | None:
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    # 'openjdk version "17.0.15" …'; up to Java 8 it read "1.8.0".
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match.group(1)) if match else None


def kafka_jars(
    on_progress: Callable[[str], None] | None = None,
    *,
    root: Path | None = None,
    abort: threading.Event | None = None,
) -> Path:
    """The folder of Kafka's jars; fetched with Maven the first time (45 MB, about 6 s).

    Two processes may ask at once: each fetches into a folder of its own beside the final one, and the first to
    rename it wins. `abort`, once set, ends a fetch with `KafkaFetchFailedError`. Blocks; call it in a thread.

    Raises `KafkaToolMissingError` without Maven, `KafkaFetchFailedError` if Maven fails.
    """
    jars = (root or cache_root()) / "kafka" / KAFKA_VERSION
    if jars.is_dir():
        return jars
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaToolMissingError(
            "the local Kafka is fetched with Maven, which is not on the PATH: "
            f"install it (Debian: apt-get install maven; macOS: brew install maven), {_ALTERNATIVES}"
        )
    if on_progress:
        on_progress(f"Fetching Apache Kafka {KAFKA_VERSION} with Maven (45 MB, once) …")
    jars.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{KAFKA_VERSION}-", dir=jars.parent) as scratch:
        fetched = Path(scratch) / "jars"
        pom = Path(scratch) / "pom.xml"
        pom.write_text(_POM, encoding="utf-8")
        _copy_dependencies(maven, pom, fetched, abort)
        try:
            fetched.rename(jars)
        except OSError:
            # Another process was first: its folder stands, and holds the same files.
            if not jars.is_dir():
                raise
    return jars


def _copy_dependencies(maven: str, pom: Path, target: Path, abort: threading.Event | None) -> None:
    output = pom.with_name("maven.out")
    command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={target}"]
    abort = abort or threading.Event()
    with output.open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            waited_s = 0.0
            while process.poll() is None and waited_s < _FETCH_TIMEOUT_S and not abort.wait(0.1):
                waited_s += 0.1
        finally:
            ended = process.poll() is not None
            if not ended:
                process.kill()
            process.wait()
    if abort.is_set():
        raise KafkaFetchFailedError("fetching Apache Kafka was given up")
    if not ended:
        raise KafkaFetchFailedError(f"Maven took longer than {_FETCH_TIMEOUT_S:.0f} s to fetch Apache Kafka")
    if process.returncode != 0 or not target.is_dir():
        words = output.read_text(encoding="utf-8", errors="replace").strip()[-2000:]
        raise KafkaFetchFailedError(
            f"Maven could not fetch Apache Kafka {KAFKA_VERSION} (exit code {process.returncode}); "
            f"check that Maven reaches a repository, {_ALTERNATIVES}. Maven said:\n{words}"
        )
