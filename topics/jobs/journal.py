"""The row journal of a job: every decided row's line, appended to a file that survives a crash.

Knows one file and its form. Does not know which replies count (`topics.jobs.tally`) or when it must be durable: `sync`
is the caller's to call. Blocks: from asyncio, use a thread for `sync` and `open`.

A line is a head and a payload, both JSON, with a tab between them (JSON holds no raw tab). The heads alone rebuild what
was known; payloads stay on the disk and are found by their place. Each head has the offset that it came from, so the
journal also says where to read on.

After a crash the end of the file may be torn. What was synced is whole, so the first line that can't be read and all
behind it were never synced: they are cut off, and read again from Kafka.
"""

import fcntl
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from topics.jobs.errors import JobMistakeError

__all__ = ["JournalInUseError", "RowJournal"]

logger = logging.getLogger(__name__)

Head = Sequence[Any]


class JournalInUseError(JobMistakeError):
    """Another process writes this journal."""


class RowJournal:
    """A context manager. One owner at a time, by a lock on the file."""

    def __init__(self, path: Path) -> None:
        """Raises `JournalInUseError`, `OSError`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise JournalInUseError(f"{path} is being written by another process: let it, or end it") from None
        self._end = self._file.seek(0, os.SEEK_END)
        self._reader = path.open("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._reader.close()
        self._file.close()

    def recover(self) -> Iterator[tuple[int, Head, bytes]]:
        """Place, head and payload (JSON) of each line, once, before anything is appended. A torn end is cut off."""
        place = 0
        self._reader.seek(0)
        for line in self._reader:
            try:
                tab = line.index(b"\t")
                head = orjson.loads(line[:tab])
                orjson.loads(line[tab:])
                torn = not line.endswith(b"\n")
            except ValueError:
                torn = True
            if torn:
                logger.warning("%s is torn at byte %d of %d: cut there", self.path, place, self._end)
                self._file.truncate(place)
                self._end = place
                # The old one has the torn end in its buffer.
                self._reader.close()
                self._reader = self.path.open("rb")
                return
            yield place, head, line[tab + 1 : -1]
            place += len(line)

    def append(self, head: Head, payload: Any) -> int:
        """The place of the line. It is durable after the next `sync`."""
        line = orjson.dumps(head) + b"\t" + orjson.dumps(payload) + b"\n"
        self._file.write(line)
        place, self._end = self._end, self._end + len(line)
        return place

    def sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def payload(self, place: int) -> bytes:
        """The payload of the line at `place`, as JSON."""
        self._file.flush()
        self._reader.seek(place)
        return self._reader.readline().split(b"\t", 1)[1].rstrip(b"\n")
