"""The result files of a job: written whole beside their names, then renamed, so that nobody ever sees half of one.

Knows paths and the two kinds of lines. Does not know where lines come from (`topics.jobs.collection`). Blocks.
"""

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from topics.jobs.collection import JobCollection

__all__ = ["WrittenResults", "replace_file", "write_results"]


@dataclass(frozen=True, slots=True)
class WrittenResults:
    output_lines: int
    error_lines: int


def write_results(
    collection: JobCollection, output: Path | None, errors: Path | None, *, in_order: bool = False
) -> WrittenResults:
    """Write what is decided by now. Both paths may be the same file, which then has all lines; None writes nothing."""
    counts = [0, 0]
    with ExitStack() as stack:
        parts = {path: stack.enter_context(_Part(path)) for path in (output, errors) if path is not None}
        for completed, line in collection.lines(in_order=in_order):
            counts[0 if completed else 1] += 1
            path = output if completed else errors
            if path is not None:
                parts[path].file.write(line + b"\n")
        for part in parts.values():
            part.finish()
    return WrittenResults(*counts)


def replace_file(path: Path, content: bytes) -> None:
    """Write a small file whole."""
    with _Part(path) as part:
        part.file.write(content)
        part.finish()


class _Part:
    """A file that gets its name when it is whole; unfinished, it goes away."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # The process in its name: two that write the same results do not meet in the middle.
        self._part = path.with_name(f"{path.name}.{os.getpid()}.part")
        self.file: IO[bytes]

    def __enter__(self) -> "_Part":
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self.file = self._part.open("wb")
        return self

    def finish(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())
        self._part.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name, too, must survive
        finally:
            os.close(folder)

    def __exit__(self, *_error: object) -> None:
        self.file.close()
        self._part.unlink(missing_ok=True)
