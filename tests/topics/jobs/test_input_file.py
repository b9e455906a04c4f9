"""Inputs of every kind become the same JSON lines."""

import gzip
import io
import sys
from pathlib import Path
from typing import Any

import fsspec
import orjson
import pyarrow
import pytest
import zstandard
from pyarrow import parquet

from topics.jobs import input_file
from topics.jobs.input_file import InputError, RowTemplate, open_input
from topics.jobs.rows import MAX_LINE_BYTES

LINES = b'{"a": 1}\n{"a": 2}\n'
TEMPLATE = RowTemplate("Is {text} good?", "Be {mood}.", {"max_tokens": 4})
TABLE = {"text": ["tea", 'co"ffee\n'], "mood": ["kind", "brief"]}


def read(location: str, template: RowTemplate | None = None) -> bytes:
    with open_input(location, template) as file:
        return b"".join(file.lines())


def test_a_plain_file_is_read_in_place(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(LINES)
    with open_input(str(path)) as file:
        assert file.path == path
        assert file.size_bytes == len(LINES)
        assert b"".join(file.lines()) == LINES


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_compression_is_told_by_the_content(tmp_path: Path, compress: Any) -> None:
    path = tmp_path / "rows"
    path.write_bytes(compress(LINES))
    assert read(str(path)) == LINES


def test_compression_does_not_change_the_fingerprint(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a", tmp_path / "b"
    plain.write_bytes(LINES)
    packed.write_bytes(gzip.compress(LINES))
    with open_input(str(plain)) as one, open_input(str(packed)) as two:
        assert one.fingerprint == two.fingerprint


def test_standard_input_can_be_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LINES)))
    with open_input("-") as file:
        assert b"".join(file.lines()) == b"".join(file.lines()) == LINES


def test_a_url_is_read_through_fsspec() -> None:
    with fsspec.open("memory://jobs/rows.jsonl", "wb") as file:
        file.write(LINES)
    assert read("memory://jobs/rows.jsonl") == LINES


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(InputError, match="nonsense"):
        read("nonsense://rows")


def requests(location: str, template: RowTemplate = TEMPLATE) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in read(location, template).splitlines()]


def write_csv(path: Path) -> None:
    path.write_text('text,mood\ntea,kind\n"co""ffee\n",brief\n', encoding="utf-8")


def write_parquet(path: Path) -> None:
    parquet.write_table(pyarrow.table(TABLE), path)


@pytest.mark.parametrize(("name", "write"), [("t.csv", write_csv), ("t.parquet", write_parquet)])
def test_the_rows_of_a_table_become_requests(tmp_path: Path, name: str, write: Any) -> None:
    write(tmp_path / name)
    first, second = requests(str(tmp_path / name))
    assert first == {
        "custom_id": "row-1",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "max_tokens": 4,
            "messages": [
                {"role": "system", "content": "Be kind."},
                {"role": "user", "content": "Is tea good?"},
            ],
        },
    }
    assert second["body"]["messages"][1]["content"] == 'Is co"ffee\n good?'


def test_a_column_may_name_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("custom_id,text\nx1,tea\n", encoding="utf-8")
    assert requests(str(path), RowTemplate("{text}", None, {}))[0]["custom_id"] == "x1"


def test_a_gzipped_table_is_one_too(tmp_path: Path) -> None:
    write_csv(tmp_path / "t.csv")
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress((tmp_path / "t.csv").read_bytes()))
    assert requests(str(tmp_path / "t.csv.gz")) == requests(str(tmp_path / "t.csv"))


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (RowTemplate("{nothing}", None, {}), "no column 'nothing': its columns are text, mood"),
        (RowTemplate("{text.x}", None, {}), "plain name"),
        (RowTemplate("{text!r}", None, {}), "plain name"),
        (RowTemplate("{", None, {}), "for a brace"),
        (None, "--prompt-template"),
    ],
)
def test_a_template_that_does_not_fit_is_refused(tmp_path: Path, template: RowTemplate | None, message: str) -> None:
    write_csv(tmp_path / "t.csv")
    with pytest.raises(InputError, match=message):
        read(str(tmp_path / "t.csv"), template)


def test_a_template_is_only_for_tables(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(LINES)
    with pytest.raises(InputError, match="no table"):
        read(str(path), TEMPLATE)


def test_a_cut_off_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.gz"
    path.write_bytes(gzip.compress(LINES * 1000)[:-20])
    with pytest.raises(InputError, match="can't be decompressed"):
        read(str(path))


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.gz"])
def test_an_input_over_the_limit_is_refused(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(LINES) if name.endswith("gz") else LINES)
    monkeypatch.setattr(input_file, "MAX_INPUT_BYTES", len(LINES) - 1)
    with pytest.raises(InputError, match="split it"):
        read(str(path))


def test_an_endless_line_is_cut_and_the_next_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"x" * (MAX_LINE_BYTES + 3_000_000) + b"\n" + LINES)
    with open_input(str(path)) as file:
        long, *others = file.lines()
    assert len(long) == MAX_LINE_BYTES + 1
    assert b"".join(others) == LINES
