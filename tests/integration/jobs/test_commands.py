"""What the commands print, as a script reads it."""

from pathlib import Path

import orjson
import pytest

from tests.integration.jobs.conftest import CommandLine, write_rows
from tests.integration.jobs.row_worker import RowWorker
from topics.admin import KafkaAdmin
from topics.catalogue import Catalogue
from topics.jobs.submission import retention_warnings
from topics.kafka_settings import KafkaSettings

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

DAY_S = 86_400


async def test_a_job_as_scripts_see_it(row_worker: RowWorker, command_line: CommandLine, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", 12, bad=[4])
    submit = ("submit", "rows.jsonl", "--job-id", "job", "--json")
    code, out, err = await command_line.run(*submit, "--dry-run", "--skip-invalid")
    assert code == 0, err
    foreseen = orjson.loads(out)
    assert (foreseen["rows"], foreseen["invalid_rows"], foreseen["output_tokens"]) == (12, 1, 44)
    assert foreseen["cost"] == foreseen["prompt_tokens"] + 2 * 44
    assert foreseen["seconds"] is None, "nothing was answered yet that could be measured"

    code, out, err = await command_line.run(*submit)
    assert (code, out) == (2, "")
    assert "line 5: line is not JSON" in err
    code, out, _ = await command_line.run("status", "job")
    assert (code, "failed" in out, "line 5: line is not JSON" in out) == (0, True, True)

    code, out, err = await command_line.run(*submit, "--skip-invalid")
    assert code == 0, err
    assert orjson.loads(out)["status"] == "in_progress"
    row_worker.allow(11)
    code, out, _ = await command_line.run("status", "job", "--watch", "--json")
    states = [orjson.loads(line) for line in out.splitlines()]
    assert (code, states[-1]["status"]) == (0, "completed")
    assert states[-1]["request_counts"] == {"total": 12, "completed": 11, "failed": 1}
    code, out, _ = await command_line.run("jobs", "--json")
    assert [orjson.loads(line) for line in out.splitlines()] == [states[-1]]

    code, out, _ = await command_line.run(
        "submit", "rows.jsonl", "--job-id", "next", "--dry-run", "--skip-invalid", "--json"
    )
    assert orjson.loads(out)["seconds"] > 0, "the replies are there to measure by"
    code, _, err = await command_line.run("status", "nothing")
    assert (code, "there is no job 'nothing'" in err) == (2, True)


async def test_a_window_longer_than_retention_is_warned_of(settings: KafkaSettings, catalogue: Catalogue) -> None:
    async with KafkaAdmin(settings) as admin:
        assert await retention_warnings(admin, catalogue, "p3", 7 * DAY_S) == []
        requests, replies = await retention_warnings(admin, catalogue, "p3", 8 * DAY_S)
    assert (catalogue.requests("p3") in requests, catalogue.replies in replies) == (True, True)
    assert "keeps records for 168 h" in replies
