"""This worker's name among those of its machine: unlike any other that lives, and like that of one that has died.

Knows names, slots and their locks. Does not know what a name is for: the transactional ids hang on it. A worker that
starts again under the name of one that was killed ends the transaction that it left open, at once; without that, the
partitions it had would wait for the broker's time-out.

A name is the host's and the lowest number that no living worker has. Each holds a lock on a file, which the kernel lets
go of when the process ends, however it ends. Limit: two machines, or containers, of one host name don't see each
other's locks. They must be named by `kafka.instance_id`, or each would end the other's transactions.
"""

import fcntl
import os
import re
import socket
import tempfile
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import IO, Self

__all__ = ["Instance", "InstanceError"]

_MOST = 1_000


class InstanceError(Exception):
    """No name can be found; the message says why and what to do."""


class Instance:
    """A context manager: the name is ours from entry to exit."""

    def __init__(self, scope: str, given: str | None = None, *, directory: Path | None = None) -> None:
        """`scope`: names are unlike within it (the cluster, the topics). `given`: the operator's own name."""
        self._scope = blake2b(scope.encode(), digest_size=8).hexdigest()
        self._given = given
        self._directory = directory or Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}"
        self._lock: IO[bytes] | None = None
        self.name = given or ""

    def __enter__(self) -> Self:
        """Raises `InstanceError`."""
        if self._given is None:
            host = re.sub(r"[^a-zA-Z0-9._-]", "-", socket.gethostname())
            self.name = f"{host}-{self._claim()}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            self._lock.close()

    def _claim(self) -> int:
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for slot in range(_MOST):
                # Never removed: a file that is unlinked while another process opens it would be locked twice.
                lock = (self._directory / f"{self._scope}-{slot}.lock").open("ab")
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    lock.close()
                else:
                    self._lock = lock
                    return slot
        except OSError as error:
            raise InstanceError(
                f"no name for this worker can be locked in {self._directory} ({error.strerror}): make it writable, or "
                "give each worker a name of its own with kafka.instance_id"
            ) from error
        raise InstanceError(f"{_MOST} workers run here: give them names of their own with kafka.instance_id")
