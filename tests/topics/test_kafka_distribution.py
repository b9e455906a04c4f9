"""What a newcomer without Java, without Maven, or without a network is told; and that a fetch is atomic.

Small scripts stand for `java` and `mvn`; the real ones run in tests/integration/test_broker_lifecycle.py.
"""

import threading
from pathlib import Path

import pytest

from topics.kafka_distribution import (
    KAFKA_VERSION,
    KafkaFetchFailedError,
    KafkaToolMissingError,
    cache_root,
    find_java,
    kafka_jars,
)

# Finds the folder that it is told to fill, as Maven does.
MAVEN = """#!/bin/sh
for argument in "$@"; do case $argument in -DoutputDirectory=*) target=${argument#*=};; esac; done
"""
MAVEN_THAT_FETCHES = MAVEN + '/bin/mkdir -p "$target" && echo jar > "$target/kafka.jar"\n'
MAVEN_THAT_FAILS = "#!/bin/sh\necho 'no route to the repository'\nexit 1\n"
MAVEN_THAT_HANGS = "#!/bin/sh\nexec /bin/sleep 600\n"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as the whole PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return folder


def put(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(script)
    path.chmod(0o755)


def test_missing_java_says_which_package_brings_it(tools: Path) -> None:
    with pytest.raises(KafkaToolMissingError, match=r"default-jre-headless.*docker compose up.*BOOTSTRAP_SERVERS"):
        find_java()


@pytest.mark.parametrize(
    ("script", "stated"),
    [
        ("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n", "is Java 11"),
        ("#!/bin/sh\necho 'java version \"1.8.0_401\"' >&2\n", "is Java 8"),
        ("#!/bin/sh\necho 'No Java runtime present' >&2\nexit 1\n", "does not run"),
    ],
)
def test_an_unfit_java_is_named_with_its_version(tools: Path, script: str, stated: str) -> None:
    put(tools, "java", script)
    with pytest.raises(KafkaToolMissingError, match=stated):
        find_java()


def test_java_home_comes_before_the_path(tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tools, "java", "#!/bin/sh\necho 'openjdk version \"11\"' >&2\n")
    home = tmp_path / "jdk"
    (home / "bin").mkdir(parents=True)
    put(home / "bin", "java", "#!/bin/sh\necho 'openjdk version \"21\" 2023-09-19' >&2\n")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java() == home / "bin" / "java"


def test_missing_maven_says_which_package_brings_it(tools: Path, tmp_path: Path) -> None:
    with pytest.raises(KafkaToolMissingError, match="apt-get install maven"):
        kafka_jars(root=tmp_path / "cache")


def test_fetched_jars_are_not_fetched_again(tools: Path, tmp_path: Path) -> None:
    put(tools, "mvn", MAVEN_THAT_FETCHES)
    told: list[str] = []
    first = kafka_jars(told.append, root=tmp_path / "cache")
    (tools / "mvn").unlink()
    assert kafka_jars(told.append, root=tmp_path / "cache") == first
    assert (first / "kafka.jar").read_text() == "jar\n"
    assert len(told) == 1


@pytest.mark.parametrize("script", [MAVEN_THAT_FAILS, MAVEN_THAT_HANGS])
def test_a_fetch_that_does_not_finish_leaves_nothing(tools: Path, tmp_path: Path, script: str) -> None:
    put(tools, "mvn", script)
    abort = threading.Event()
    timer = threading.Timer(0.3, abort.set)
    if script == MAVEN_THAT_HANGS:
        timer.start()
    with pytest.raises(KafkaFetchFailedError, match=r"no route to the repository|given up"):
        kafka_jars(root=tmp_path / "cache", abort=abort)
    assert list((tmp_path / "cache" / "kafka").iterdir()) == []
    timer.cancel()


def test_the_loser_of_two_fetches_uses_the_winners_jars(tools: Path, tmp_path: Path) -> None:
    jars = tmp_path / "cache" / "kafka" / KAFKA_VERSION
    # By the time this Maven is done, another process has put its own folder in place.
    winner = f'/bin/mkdir -p "{jars}" && echo winner > "{jars}/kafka.jar"\n'
    put(tools, "mvn", MAVEN_THAT_FETCHES + winner)
    assert (kafka_jars(root=tmp_path / "cache") / "kafka.jar").read_text() == "winner\n"
    assert list(jars.parent.iterdir()) == [jars]


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("HEADRACE_CACHE_DIR", raising=False)
    assert cache_root() == tmp_path / "headrace"
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "own"))
    assert cache_root() == tmp_path / "own"
