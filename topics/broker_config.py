"""What a local broker is configured with: where it listens, its `server.properties`, its log.

Knows ports and the files of a state directory. Does not know how the broker is started or stopped
(`topics.local_broker`).
"""

import json
import random
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

__all__ = ["Endpoints", "free_port", "port_is_free", "write_log4j_properties", "write_server_properties"]

# Below the range from which Linux (32768 up) and macOS (49152 up) take the local ports of outgoing connections:
# while the broker is down, a client's reconnect could otherwise be given the broker's own port.
_PORT_RANGE = range(20_000, 32_000)

_LOG4J_PROPERTIES = """\
status = error
appender.file.type = RollingFile
appender.file.name = File
appender.file.fileName = broker.log
appender.file.filePattern = broker.log.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %m (%c)%n%throwable
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
rootLogger.level = info
rootLogger.appenderRef.file.ref = File
"""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where the broker listens; kept in the state directory, so that the next run is found at the same place."""

    port: int
    controller_port: int

    def save(self, state_dir: Path) -> None:
        text = json.dumps({"port": self.port, "controller_port": self.controller_port})
        (state_dir / "endpoints.json").write_text(text, encoding="ascii")

    @classmethod
    def load(cls, state_dir: Path) -> Self | None:
        path = state_dir / "endpoints.json"
        if not path.is_file():
            return None
        stored = json.loads(path.read_text(encoding="ascii"))
        return cls(int(stored["port"]), int(stored["controller_port"]))

    @staticmethod
    def forget(state_dir: Path) -> None:
        (state_dir / "endpoints.json").unlink(missing_ok=True)

    @classmethod
    def choose(cls, state_dir: Path, fixed_port: int | None) -> Self:
        """A fixed port, else the last run's if it is free, else any free one."""
        last = cls.load(state_dir)
        port = fixed_port
        if port is None and last is not None and port_is_free(last.port):
            port = last.port
        if port is None:
            port = free_port()
        controller_port = last.controller_port if last is not None else None
        if controller_port is None or controller_port == port or not port_is_free(controller_port):
            controller_port = free_port(other_than=port)
        return cls(port, controller_port)


def port_is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the JVM does: connections that linger from the last run are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port(other_than: int | None = None) -> int:
    """A port of 127.0.0.1 that nobody listens on now. Raises `OSError` if 200 random ones are all taken."""
    for port in random.sample(_PORT_RANGE, 200):
        if port != other_than and port_is_free(port):
            return port
    raise OSError(f"no free port on 127.0.0.1 between {_PORT_RANGE.start} and {_PORT_RANGE.stop}: give one with port=")


def write_log4j_properties(state_dir: Path) -> None:
    (state_dir / "log4j2.properties").write_text(_LOG4J_PROPERTIES, encoding="ascii")


def write_server_properties(
    path: Path, endpoints: Endpoints, *, data_dir: str, extra: Mapping[str, str] | None = None
) -> None:
    """One node that is broker and controller. `data_dir` is relative to the folder the broker runs in.

    Paths are relative so that nothing must be escaped for Java's properties format. `extra` wins.
    """
    broker, controller = f"127.0.0.1:{endpoints.port}", f"127.0.0.1:{endpoints.controller_port}"
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{controller}",
        "listeners": f"PLAINTEXT://{broker},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{broker}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": data_dir,
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        # The defaults, 50 each, are made when first needed and would cost the first group a second.
        "offsets.topic.num.partitions": "8",
        "transaction.state.log.num.partitions": "8",
        "group.initial.rebalance.delay.ms": "0",
        # After a kill, the controller refuses the broker's new registration until the old session has expired.
        # With the default, 9 s, that is what a restart would wait for.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        # The default, 128 MiB, is a quarter of the heap.
        "log.cleaner.dedupe.buffer.size": str(16 * 2**20),
    }
    properties.update(extra or {})
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()), encoding="ascii")
