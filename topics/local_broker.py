"""Apache Kafka itself on this machine: one node in KRaft mode, for `headrace dev`, the demo and the tests.

Knows how a broker is configured, formatted, started, asked whether it serves, stopped, killed and started again
over the same data and port. Does not know where its jars come from (`topics.kafka_distribution`), how it is ended
when this process dies (`topics.broker_guard`), or which topics are wanted (`topics.catalogue`).

Not for production: one node, no replication, plain text on the loopback interface.
"""

import asyncio
import base64
import fcntl
import logging
import os
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from topics.broker_config import Endpoints, write_log4j_properties, write_server_properties
from topics.broker_guard import GuardedProcess
from topics.kafka_distribution import KAFKA_VERSION, BrokerError, find_java, kafka_jars

__all__ = [
    "BrokerStartFailedError",
    "BrokerStateInUseError",
    "BrokerStatistics",
    "LocalBroker",
]

logger = logging.getLogger(__name__)

_PORT_TRIES = 3
_POLL_S = 0.05


class BrokerStartFailedError(BrokerError):
    """The broker ended while it started, or did not answer in time. The message ends with its log's last lines."""


class BrokerStateInUseError(BrokerError):
    """Another broker runs on this state directory."""


@dataclass(frozen=True, slots=True)
class BrokerStatistics:
    running: bool
    pid: int | None
    """The JVM's, while it runs."""
    port: int | None
    """None before the first start."""
    starts: int
    forced_kills: int
    """Stops that had to end in SIGKILL because the broker did not end within its grace period."""


class LocalBroker:
    """One Kafka node over a state directory. `start`, `stop` and `kill` block: from asyncio, use a thread.

    As a context manager, plain or `async`, it starts on entry and stops on exit. A second `start` after `stop` or
    `kill` serves the same data on the same port. One owner: not for use from several threads at once.

    `port`: a fixed one; else that of the state directory's last run, else a free one.
    `cluster_id`: of the cluster that it is formatted as a node of; a new one by default.
    `extra_properties` are added to, or replace, lines of `server.properties`.
    Raises `KafkaToolMissingError`, `KafkaFetchFailedError`, `BrokerStateInUseError`, `BrokerStartFailedError`, all
    of them `BrokerError`.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        port: int | None = None,
        cluster_id: str | None = None,
        heap_mb: int = 512,
        start_timeout_s: float = 60.0,
        stop_grace_s: float = 15.0,
        extra_properties: Mapping[str, str] | None = None,
        on_progress: Callable[[str], None] | None = None,
    ) -> None:
        self._state_dir = state_dir.absolute()
        self._fixed_port = port
        self._cluster_id = cluster_id or base64.urlsafe_b64encode(os.urandom(16)).rstrip(b"=").decode("ascii")
        self._heap_mb = heap_mb
        self._start_timeout_s = start_timeout_s
        self._stop_grace_s = stop_grace_s
        self._extra_properties = dict(extra_properties or {})
        self._on_progress = on_progress or (lambda _: None)
        self._endpoints: Endpoints | None = None
        self._process: GuardedProcess | None = None
        self._lock: IO[bytes] | None = None
        self._abort = threading.Event()
        self._starts = 0
        self._forced_kills = 0

    @property
    def bootstrap_servers(self) -> str:
        """`127.0.0.1:PORT`. Known from the first start on, also while the broker is down."""
        if self._endpoints is None:
            raise BrokerError("the local broker has no address before its first start: call start() first")
        return f"127.0.0.1:{self._endpoints.port}"

    @property
    def log_file(self) -> Path:
        return self._state_dir / "broker.log"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.exit_code is None

    def statistics(self) -> BrokerStatistics:
        return BrokerStatistics(
            running=self.running,
            pid=self._process.pid if self._process is not None and self.running else None,
            port=self._endpoints.port if self._endpoints else None,
            starts=self._starts,
            forced_kills=self._forced_kills,
        )

    # --- start ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Return when the broker answers requests. Fetches and formats what is missing. Idempotent."""
        if self.running:
            return
        self._release()
        java = find_java()
        jars = kafka_jars(self._on_progress, abort=self._abort)
        self._state_dir.mkdir(parents=True, exist_ok=True)
        try:
            self._take_lock()
            write_log4j_properties(self._state_dir)
            self._run_on_a_free_port(java, jars)
        except BaseException:
            self._release()
            raise
        self._starts += 1

    def _run_on_a_free_port(self, java: Path, jars: Path) -> None:
        for attempt in range(1, _PORT_TRIES + 1):
            endpoints = self._choose_endpoints()
            write_server_properties(
                self._state_dir / "server.properties", endpoints, data_dir="data", extra=self._extra_properties
            )
            if not (self._state_dir / "data").is_dir():
                self._format(java, jars, endpoints)
            self._on_progress(f"Starting Apache Kafka {KAFKA_VERSION} on 127.0.0.1:{endpoints.port} …")
            self._endpoints = endpoints
            self._process = GuardedProcess(
                self._java_command(java, jars, "kafka.Kafka", "server.properties"),
                state_dir=self._state_dir,
                grace_s=self._stop_grace_s,
                lock=self._lock,
            )
            try:
                self._wait_until_it_answers(self._process, endpoints.port)
            except BrokerStartFailedError as error:
                self._process.close(self._stop_grace_s)
                self._process = None
                # Between choosing a port and Kafka's binding it, another process can take it.
                chosen_by_us = self._fixed_port is None and self._starts == 0
                if attempt == _PORT_TRIES or not chosen_by_us or "Address already in use" not in str(error):
                    raise
                Endpoints.forget(self._state_dir)
            else:
                return

    def _choose_endpoints(self) -> Endpoints:
        if self._endpoints is not None and self._starts:
            # Clients know this address: a restart keeps it or fails.
            return self._endpoints
        endpoints = Endpoints.choose(self._state_dir, self._fixed_port)
        endpoints.save(self._state_dir)
        return endpoints

    def _format(self, java: Path, jars: Path, endpoints: Endpoints) -> None:
        # Formatted under another name and renamed: an interrupted format is begun anew.
        scratch = self._state_dir / "data.new"
        shutil.rmtree(scratch, ignore_errors=True)
        self._on_progress("Formatting the broker's storage …")
        write_server_properties(
            self._state_dir / "format.properties", endpoints, data_dir=scratch.name, extra=self._extra_properties
        )
        command = self._java_command(java, jars, "kafka.tools.StorageTool", "format")
        # '=' because an id may begin with a dash.
        command += [f"--cluster-id={self._cluster_id}", "--config", "format.properties"]
        done = subprocess.run(command, cwd=self._state_dir, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BrokerStartFailedError(
                f"the broker's storage in {self._state_dir} could not be formatted:\n"
                + (done.stderr + done.stdout).strip()[-2000:]
            )
        scratch.rename(self._state_dir / "data")

    def _java_command(self, java: Path, jars: Path, *arguments: str) -> list[str]:
        temporary = self._state_dir / "tmp"
        temporary.mkdir(exist_ok=True)
        return [
            str(java),
            f"-Xmx{self._heap_mb}m",
            "-XX:+UseSerialGC",
            # Without the optimising compiler it starts 10 to 20 % sooner on two busy cores, and takes less CPU from
            # whoever started it.
            "-XX:TieredStopAtLevel=1",
            "-XX:-UsePerfData",
            "-XX:+ExitOnOutOfMemoryError",
            f"-Djava.io.tmpdir={temporary}",
            "-Dlog4j2.configurationFile=log4j2.properties",
            "-cp",
            f"{jars}/*",
            *arguments,
        ]

    def _wait_until_it_answers(self, process: GuardedProcess, port: int) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        while not _answers(port):
            if process.exit_code is not None:
                raise BrokerStartFailedError(
                    f"the local broker ended with exit code {process.exit_code} while it started; "
                    f"its log is {self.log_file}:\n{self._log_tail()}"
                )
            if self._abort.is_set() or time.monotonic() > deadline:
                why = "was given up" if self._abort.is_set() else f"took over {self._start_timeout_s:g} s"
                raise BrokerStartFailedError(
                    f"the start of the local broker {why}; its log is {self.log_file}:\n{self._log_tail()}"
                )
            process.exited.wait(_POLL_S)

    def _log_tail(self) -> str:
        tails: list[str] = []
        for path in (self._state_dir / "broker.out", self.log_file):
            if path.is_file():
                tails += path.read_text(encoding="utf-8", errors="replace").splitlines()[-25:]
        return "\n".join(tails)

    # --- one broker a directory -------------------------------------------------------------------------------

    def _take_lock(self) -> None:
        """The guard inherits this lock: it lasts until both this process and the guard have ended."""
        lock = (self._state_dir / "lock").open("ab")
        # The broker of a process that was killed a moment ago is still being stopped by its guard.
        deadline = time.monotonic() + self._stop_grace_s + 2.0
        told = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline or self._abort.is_set():
                    lock.close()
                    raise BrokerStateInUseError(
                        f"another local broker runs on {self._state_dir}: stop it, or give another state directory"
                    ) from None
                if not told:
                    self._on_progress(f"Waiting for the last broker on {self._state_dir} to end …")
                    told = True
                self._abort.wait(_POLL_S)
            else:
                self._lock = lock
                return

    def _release(self) -> None:
        if self._process is not None:
            self._process.close(self._stop_grace_s)
            self._process = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # --- stop -------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Shut down cleanly; after the grace period, SIGKILL with a warning. Idempotent."""
        if self._process is not None and self.running:
            self._process.send("stop")
            if not self._process.exited.wait(self._stop_grace_s):
                logger.warning("the local broker did not stop within %g s: killing it", self._stop_grace_s)
                self._forced_kills += 1
                self._process.send("kill")
        self._release()

    def kill(self) -> None:
        """End the broker at once with SIGKILL, as a crash would. Its data stays."""
        if self._process is not None and self.running:
            self._process.send("kill")
        self._release()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The thread can't be cancelled: it is asked to give up, and then what it started is stopped.
            self._abort.set()
            await asyncio.wait({starting})
            if not starting.cancelled() and (given_up := starting.exception()) is not None:
                logger.debug("the broker's start was cancelled: %s", given_up)
            await asyncio.to_thread(self.stop)
            self._abort.clear()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stopping = asyncio.ensure_future(asyncio.to_thread(self.stop))
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            await asyncio.wait({stopping})
            raise


def _answers(port: int) -> bool:
    """Whether a broker answers a metadata request and says that it has joined its cluster.

    The port is open a little earlier: a broker listens before the controller lets it serve. Metadata version 1
    (`kafka-clients` MetadataRequest.json): header, then an array of topics, here none; the answer begins with the
    array of live brokers.
    """
    metadata_key, version, correlation_id, client = 3, 1, 1, b"headrace"
    body = struct.pack(f">hhih{len(client)}si", metadata_key, version, correlation_id, len(client), client, 0)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2.0) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            with connection.makefile("rb") as answer:
                head = answer.read(12)
    except OSError:
        return False
    if len(head) < 12:
        return False
    _, answered_id, live_brokers = struct.unpack(">iii", head)
    return bool(answered_id == correlation_id and live_brokers > 0)
