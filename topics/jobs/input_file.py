"""The input of a job as a local file of JSON lines, whatever it was given as.

Knows files, standard input, `fsspec` URLs, gzip and zstd (told by their first bytes), and CSV and Parquet tables, of
which each row becomes a batch line by a template. Does not know what a line must say (`topics.jobs.rows`).

An input is read several times (its fingerprint, the check, the sending), so what can't be read twice or isn't JSON
lines is copied once into a temporary file. Memory does not grow with it.
"""

import csv
import gzip
import io
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from string import Formatter
from typing import IO, Any, cast

import orjson

from topics.extras import how_to_install
from topics.jobs.errors import JobMistakeError
from topics.jobs.rows import ENDPOINTS, MAX_LINE_BYTES

__all__ = ["MAX_INPUT_BYTES", "InputError", "InputFile", "RowTemplate", "open_input"]

MAX_INPUT_BYTES = 200 * 2**20
"""OpenAI's limit on a batch file, decompressed."""
_CHUNK_BYTES = 2**20
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class InputError(JobMistakeError):
    """The input can't be read as what it is said to be, with the remedy."""


@dataclass(frozen=True, slots=True)
class RowTemplate:
    """How a row of a table becomes a chat request."""

    prompt: str
    """With `{column}` for a column's value; `{{` is a brace."""
    system: str | None
    fields: Mapping[str, Any]
    """Further fields of every body (`model`, `max_tokens`, …)."""

    def columns(self) -> set[str]:
        """Raises `InputError` for anything but plain names between braces."""
        names: set[str] = set()
        for text in (self.prompt, self.system or ""):
            try:
                fields = [(name, form, conversion) for _, name, form, conversion in Formatter().parse(text)]
            except ValueError as error:
                raise InputError(f"the template {text!r}: {error}; write {{{{ for a brace") from error
            for name, form, conversion in fields:
                if name is None:
                    continue
                if not name or form or conversion or set(".[") & set(name):
                    raise InputError(f"the template's field {{{name}}}: write the plain name of a column")
                names.add(name)
        return names

    def line(self, row: int, values: Mapping[str, str]) -> bytes:
        """The batch line of a row. Its `custom_id` is the column of that name, else `row-N` from 1."""
        messages = [{"role": "user", "content": self.prompt.format_map(values)}]
        if self.system is not None:
            messages.insert(0, {"role": "system", "content": self.system.format_map(values)})
        return orjson.dumps(
            {
                "custom_id": values.get("custom_id", f"row-{row + 1}"),
                "method": "POST",
                "url": ENDPOINTS[0],
                "body": {**self.fields, "messages": messages},
            }
        )


@dataclass(frozen=True, slots=True)
class InputFile:
    name: str
    """As it was given."""
    path: Path
    """Of the JSON lines."""
    fingerprint: str
    """Of their bytes."""
    size_bytes: int

    def lines(self) -> Iterator[bytes]:
        """Without line ends. An overlong line is cut just past the limit, so that its check can refuse it."""
        with self.path.open("rb") as file:
            while line := file.readline(MAX_LINE_BYTES + 1):
                if len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
                    while (rest := file.readline(_CHUNK_BYTES)) and not rest.endswith(b"\n"):
                        pass
                yield line


@contextmanager
def open_input(location: str, template: RowTemplate | None = None) -> Iterator[InputFile]:
    """`location`: a path, a URL that `fsspec` knows, or `-` for standard input. Blocks.

    Raises `InputError`, `OSError`.
    """
    with ExitStack() as stack:
        path = _plain_path(location)
        if path is None:
            copy = stack.enter_context(tempfile.NamedTemporaryFile(prefix="headrace-input-", suffix=".jsonl"))
            _copy_lines(location, template, copy)
            copy.flush()
            path = Path(copy.name)
        elif template is not None:
            raise InputError(f"{location} is no table: a template is for CSV and Parquet")
        digest, size = blake2b(digest_size=16), 0
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
                _check_size(location, size)
        yield InputFile(location, path, digest.hexdigest(), size)


def _plain_path(location: str) -> Path | None:
    """The path, if it is a local file of JSON lines and can be read in place as often as wanted."""
    if location == "-" or "://" in location or _kind(location) != "jsonl":
        return None
    path = Path(location)
    with path.open("rb") as file:
        if not file.seekable() or file.read(4).startswith((_GZIP, _ZSTD)):
            return None
    return path


def _kind(location: str) -> str:
    name = location.lower()
    for ending in (".gz", ".gzip", ".zst", ".zstd"):
        name = name.removesuffix(ending)
    return "csv" if name.endswith(".csv") else "parquet" if name.endswith(".parquet") else "jsonl"


def _copy_lines(location: str, template: RowTemplate | None, target: IO[bytes]) -> None:
    kind = _kind(location)
    if kind == "jsonl" and template is not None:
        raise InputError(f"{location} is no table: a template is for CSV and Parquet")
    if kind != "jsonl" and template is None:
        raise InputError(f"{location} is a table: say with --prompt-template what its rows ask")
    with ExitStack() as stack:
        source = _decompressed(_opened(location, stack), stack)
        size = 0
        chunks = iter(lambda: source.read(_CHUNK_BYTES), b"")
        if template is not None:
            table = _csv_rows(source) if kind == "csv" else _parquet_rows(source, stack)
            stack.enter_context(closing(table))  # before its source
            chunks = (line + b"\n" for line in _table_lines(location, template, table))
        try:
            for chunk in chunks:
                size += len(chunk)
                _check_size(location, size)
                target.write(chunk)
        except (EOFError, gzip.BadGzipFile) as error:
            raise InputError(f"{location} can't be decompressed: {error}") from error


def _check_size(location: str, size: int) -> None:
    if size > MAX_INPUT_BYTES:
        raise InputError(
            f"{location} has more than {MAX_INPUT_BYTES // 2**20} MiB of lines: split it into several jobs"
        )


def _opened(location: str, stack: ExitStack) -> IO[bytes]:
    if location == "-":
        return sys.stdin.buffer
    if "://" not in location:
        return stack.enter_context(Path(location).open("rb"))
    try:
        import fsspec
    except ModuleNotFoundError as error:
        raise InputError(f"{location} needs fsspec: {how_to_install('batch')}") from error
    try:
        file: IO[bytes] = stack.enter_context(fsspec.open(location, "rb"))
    except (ValueError, ImportError) as error:  # a protocol that it doesn't know, or knows but lacks the package of
        raise InputError(f"{location}: {error}") from error
    return file


def _decompressed(source: IO[bytes], stack: ExitStack) -> IO[bytes]:
    # Buffered, so that the first bytes can be looked at without taking them; `open` and fsspec give such streams too.
    buffered = source if hasattr(source, "peek") else stack.enter_context(io.BufferedReader(source))  # type: ignore[type-var]
    magic = bytes(buffered.peek(4)[:4])
    if magic.startswith(_GZIP):
        return cast("IO[bytes]", stack.enter_context(gzip.open(buffered, "rb")))
    if magic.startswith(_ZSTD):
        try:
            import zstandard
        except ModuleNotFoundError as error:
            raise InputError(f"zstd needs the package zstandard: {how_to_install('batch')}") from error
        reader: IO[bytes] = stack.enter_context(zstandard.ZstdDecompressor().stream_reader(buffered))
        return reader
    return buffered


def _table_lines(location: str, template: RowTemplate, table: Iterator[Mapping[str, str]]) -> Iterator[bytes]:
    wanted = template.columns()
    for row, values in enumerate(table):
        if missing := sorted(wanted - values.keys()):
            raise InputError(f"{location} has no column {missing[0]!r}: its columns are {', '.join(values)}")
        yield template.line(row, values)


def _csv_rows(source: IO[bytes]) -> Generator[Mapping[str, str], None, None]:
    text = io.TextIOWrapper(source, encoding="utf-8-sig", newline="")
    try:
        # Short rows lack their last columns, long ones have values without one: both are taken as empty.
        for values in csv.DictReader(text, restval="", restkey=""):
            values.pop("", None)
            yield values
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"the CSV can't be read: {error}") from error
    finally:
        text.detach()  # whoever opened the source closes it


def _parquet_rows(source: IO[bytes], stack: ExitStack) -> Generator[Mapping[str, str], None, None]:
    try:
        from pyarrow import ArrowException, parquet
    except ModuleNotFoundError as error:
        raise InputError(f"Parquet needs the package pyarrow: {how_to_install('batch')}") from error
    # Its index stands at the end: what can't be seeked in is copied once more.
    file = source
    if not source.seekable():
        copy = tempfile.TemporaryFile(prefix="headrace-input-")  # noqa: SIM115 - the stack closes it
        file = stack.enter_context(copy)
        while chunk := source.read(_CHUNK_BYTES):
            file.write(chunk)
    try:
        for batch in parquet.ParquetFile(file).iter_batches(batch_size=1024):
            for values in batch.to_pylist():
                yield {name: "" if value is None else str(value) for name, value in values.items()}
    except ArrowException as error:
        raise InputError(f"the Parquet file can't be read: {error}") from error
