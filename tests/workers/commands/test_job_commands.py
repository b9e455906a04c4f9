"""The commands of jobs before they reach a broker: what the user got wrong, and what is said of a job."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.topics.jobs.job_rig import job
from tests.topics.jobs.test_state import standing
from workers.cli import main
from workers.commands.job_connection import duration_s
from workers.commands.job_view import job_table, print_batch, summary

LINE = b'{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"prompt":"x"}}\n'


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where no broker is."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(LINE)
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--output", "out.jsonl"], "--wait"),
        (["--job-weight", "0"], "--job-weight 0"),
        (["--metadata", "night"], "key=value"),
        (["--metadata", "k=" + "x" * 513], "key=value"),
        (["--job-id", "a~b"], "job id 'a~b'"),
        (["--max-tokens", "4"], "--prompt-template"),
        (["--prompt-template", "{text}"], "no table"),
    ],
)
def test_submit_says_what_is_wrong(
    rows: str, arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", rows, *arguments]) == 2
    assert named in capsys.readouterr().err


def test_an_input_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", str(tmp_path / "nothing.jsonl")]) != 0
    assert "nothing.jsonl: No such file" in capsys.readouterr().err


def test_results_must_go_somewhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["results", "job"]) == 2
    assert main(["results", "job", "--output", "-", "--json"]) == 2
    assert "--output FILE" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [["submit"], ["status", "j"], ["jobs"], ["resume", "j"], ["results", "j", "--output", "-"]]
)
def test_a_broker_that_is_away_is_a_sentence(
    command: list[str], rows: str, nobody: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*command, *([rows] if command == ["submit"] else []), "--bootstrap-servers", nobody]
    assert main(arguments) == 1
    assert f"no Kafka broker answered at {nobody}" in capsys.readouterr().err


def test_durations_have_units() -> None:
    assert [duration_s(text) for text in ("30s", "5m", "24h", "2d")] == [30, 300, 86_400, 172_800]


def test_a_summary_names_only_what_there_is() -> None:
    assert summary(job(), standing(completed=7, failed=1)) == (
        "nightly: in_progress, 7 done, 1 failed, 2 to go of 10; 0 + 0 tokens"
    )


def test_the_table_has_a_line_a_job() -> None:
    head, line = job_table([(job(), standing(completed=10))]).splitlines()
    assert head.split() == ["JOB", "STATE", "CLASS", "TENANT", "CREATED", "ROWS", "DONE", "FAILED", "TO", "GO"]
    assert line.split() == ["nightly", "completed", "p3", "acme", "1970-01-01", "00:00:00Z", "10", "10", "0", "0"]


def test_a_batch_is_printed_field_by_field(capsys: pytest.CaptureFixture[str]) -> None:
    print_batch(job(), standing(completed=10))
    said = capsys.readouterr().out
    assert "completion_window  1m" in said
    assert "expires_at         1970-01-01 00:01:00Z" in said
