"""Jobs on SmolLM2 from end to end: python -m benchmarks.batch_stories whole|killed|cancelled|expired [--rows 2000]

On an Apache Kafka of its own, with the commands that a user gives, each as a process; the rows are asked about this
repository's documentation, one in a hundred is bad, in ten ways.

- `whole`: `submit --wait` at a terminal, with urgent prompts in the middle: their time to the first token beside that
  of an idle worker's.
- `killed`: the client that submits and waits, a collector and the worker are each killed (SIGKILL) several times.
- `cancelled`: `headrace cancel` when three rows in ten are done; the job is resumed, and what failed is retried.
- `expired`: the same, but it is the completion window that closes when about three rows in ten are done.

Each story says what must hold at its end and fails if it does not: every row has one line, in OpenAI's format; no row
has two answers, counted from the topics; states and times are right. Prints one JSON.
"""

import argparse
import asyncio
import json
import re
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import orjson

from benchmarks.batch_format import BATCH, RESULT_LINE, schema_of
from benchmarks.batch_rows import BAD_KINDS, write_rows
from benchmarks.batch_stage import JOB, Command, Stage
from topics.client import HeadraceClient
from topics.jobs.state import JobState, Standing
from topics.reply_merge import Answer

_BAD_PART = 0.01
"""Of the rows; each of the ten kinds comes once at least."""
_IDLE_PROMPTS = 10
_BETWEEN_PROMPTS_S = 3.0
_BUSY_PART = 0.05
"""Of the rows: when they are done, the engine is full of others."""
_RATED_PART = 0.06
"""Of the rows: so many others are run first, to see how fast they are."""
_LATE = re.compile(r"([0-9,]+) answers that came after")
_ENDED_PART = 0.3
"""Of the rows: when they are done, the job is cancelled or its window closes."""
_WAITING = ("--wait", "--output", "out.jsonl", "--errors", "bad.jsonl")
_SUBMIT = ("submit", "rows.jsonl", "--job-id", JOB, "--skip-invalid")
_KILLS = [
    (0.08, "worker"),
    (0.16, "collector"),
    (0.24, "client"),
    (0.32, "worker"),
    (0.40, "collector"),
    (0.48, "client"),
    (0.56, "worker"),
    (0.64, "collector"),
    (0.72, "client"),
]
"""When so many of the rows are done."""


def bad_rows(rows: int) -> int:
    return max(len(BAD_KINDS), round(_BAD_PART * rows))


# --- what must hold ---------------------------------------------------------------------------------------------------


def check_files(output: Path, errors: Path, rows: int) -> dict[str, int]:
    """Every row has one line, in OpenAI's format."""
    done, failed = ([orjson.loads(line) for line in path.read_bytes().splitlines()] for path in (output, errors))
    line_schema = schema_of(RESULT_LINE)
    for line in done + failed:
        line_schema.validate(line)
    names = Counter(line["custom_id"] for line in done + failed)
    expect("lines of both files", len(done) + len(failed), rows)
    expect("custom_ids", len(names), rows)
    for line in done:
        expect(f"status of {line['custom_id']}", line["response"]["status_code"], 200)
    return {"output_lines": len(done), "error_lines": len(failed), "custom_ids": len(names)}


def expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise SystemExit(f"{what}: {found}, not {wanted}")


# --- the stories ------------------------------------------------------------------------------------------------------


async def whole(stage: Stage, rows: int) -> dict[str, Any]:
    worker = await stage.start_worker()
    async with HeadraceClient(stage.servers) as client:
        await urgent(client)  # the worker has started
        idle = [await urgent(client) for _ in range(_IDLE_PROMPTS)]
        begun_s = time.monotonic()
        submit = await stage.start(*_SUBMIT, *_WAITING, terminal=True)
        ended = asyncio.create_task(submit.ended())
        await stage.until(lambda job: job is not None)
        await stage.until_done(round(_BUSY_PART * rows))
        busy: list[Answer] = []
        while not ended.done():
            busy.append(await urgent(client))
            await asyncio.wait({ended}, timeout=_BETWEEN_PROMPTS_S)
        seconds = time.monotonic() - begun_s
        expect("exit code of submit", await ended, 1)  # some rows failed
    await worker.terminate()
    files = check_files(stage.folder / "out.jsonl", stage.folder / "bad.jsonl", rows)
    expect("output lines", files["output_lines"], rows - bad_rows(rows))
    await state(stage, JobState.COMPLETED)
    return {
        "rows": rows,
        "seconds": round(seconds, 1),
        "idle": first_tokens(idle),
        "beside the job": first_tokens(busy),
        "bar_counts_seen": len(submit.counts_shown()),
        "bar_at_the_end": submit.last_bar(),
        "said": submit.output.strip().splitlines()[-1],
        **files,
        **await answered_once(stage),
    }


async def urgent(client: HeadraceClient) -> Answer:
    """What `headrace send --priority p0` does."""
    stream = await client.stream("Say hello.", priority="p0", max_tokens=4, temperature=0)
    async for _ in stream:
        pass
    assert stream.answer is not None
    return stream.answer


def first_tokens(answers: Sequence[Answer]) -> dict[str, Any]:
    """Seconds to the first token, and the medians of what they went into."""
    waited = [answer.first_delta_s - answer.sent_s for answer in answers if answer.first_delta_s is not None]
    stages = [answer.stages for answer in answers if answer.stages is not None]
    parts = {name: [getattr(each, name) or 0.0 for each in stages] for name in ("ingress", "queue", "slot", "prefill")}
    return {"ttft_s": spread(waited), "of_which_median_s": {name: round(median(parts[name]), 3) for name in parts}}


def spread(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "prompts": len(ordered),
        "median": round(median(ordered), 3),
        "p90": round(ordered[int(0.9 * (len(ordered) - 1))], 3),
        "longest": round(ordered[-1], 3),
    }


async def killed(stage: Stage, rows: int) -> dict[str, Any]:
    submit = (*_SUBMIT, *_WAITING)
    start: dict[str, Callable[[], Awaitable[Command]]] = {
        "worker": stage.start_worker,
        "collector": lambda: stage.start("collect", "--output-dir", "results"),
        "client": lambda: stage.start(*submit),
    }
    first = await stage.start(*submit)
    await stage.until(lambda job: job is not None)
    await first.kill()  # its rows may be checked, announced or sent by now
    running = {name: await begin() for name, begin in start.items()}
    kills: Counter[str] = Counter(client=1)
    begun_s = time.monotonic()
    for part, name in _KILLS:
        await stage.until_done(round(part * rows))
        kills[name] += await running[name].kill()
        running[name] = await start[name]()
    expect("exit code of submit", await running["client"].ended(), 1)
    await stage.until(lambda job: job is not None and job.ended)
    seconds = time.monotonic() - begun_s
    await running["collector"].terminate()
    await running["worker"].terminate()
    expect("kills that met a process", kills.total(), len(_KILLS) + 1)
    files = check_files(stage.folder / "out.jsonl", stage.folder / "bad.jsonl", rows)
    expect("output lines", files["output_lines"], rows - bad_rows(rows))
    collected = stage.folder / "results" / JOB
    expect("collected lines", check_files(collected / "output.jsonl", collected / "errors.jsonl", rows), files)
    schema_of(BATCH).validate(orjson.loads((collected / "batch.json").read_bytes()))
    return {
        "rows": rows,
        "seconds": round(seconds, 1),
        "kills": dict(kills),
        **files,
        **await answered_once(stage),
    }


async def cancelled(stage: Stage, rows: int) -> dict[str, Any]:
    worker = await stage.start_worker()
    submit = await stage.start(*_SUBMIT, *_WAITING)
    await stage.until(lambda job: job is not None)
    await stage.until_done(round(_ENDED_PART * rows))
    await stage.run("cancel", JOB)
    expect("exit code of submit", await submit.ended(), 1)
    figures = await ended_and_resumed(stage, rows, JobState.CANCELLED)
    await worker.terminate()
    return {"rows": rows, **figures}


async def expired(stage: Stage, rows: int) -> dict[str, Any]:
    worker = await stage.start_worker()
    rated = max(10, round(_RATED_PART * rows))
    for seed, name in enumerate(("warming", "rated")):
        write_rows(stage.folder / f"{name}.jsonl", rated, 0, seed=seed)
        begun_s = time.monotonic()
        await stage.run("submit", f"{name}.jsonl", "--job-id", name, "--wait")
    window_s = round(_ENDED_PART * rows * (time.monotonic() - begun_s) / rated)
    await stage.run(*_SUBMIT, "--completion-window", f"{window_s}s", *_WAITING, code=1)
    figures = await ended_and_resumed(stage, rows, JobState.EXPIRED)
    await worker.terminate()
    return {"rows": rows, "window_s": window_s, **figures}


async def ended_and_resumed(stage: Stage, rows: int, ended: JobState) -> dict[str, Any]:
    """What must hold of a job that ended before all of it was run, of its resumption and of its retry."""
    output, errors = stage.folder / "out.jsonl", stage.folder / "bad.jsonl"
    at_end = await state(stage, ended)
    files = check_files(output, errors, rows)
    expect("done rows", at_end.completed, files["output_lines"])
    expect("rows with a fate", at_end.completed + at_end.failed + at_end.expired + at_end.cancelled, rows)
    done = output_ids(output)
    said = await stage.run("resume", JOB, "--completion-window", "2h", *_WAITING, code=1)
    late = _LATE.search(said)
    resumed = await state(stage, JobState.COMPLETED)
    files = check_files(output, errors, rows)
    expect("output lines", files["output_lines"], rows - bad_rows(rows))
    expect("done rows that kept their answer", len(done & output_ids(output)), len(done))
    done = output_ids(output)
    await stage.run("retry", JOB, *_WAITING, code=1)
    retried = await state(stage, JobState.COMPLETED)
    expect("files after the retry", check_files(output, errors, rows), files)
    expect("answers after the retry", output_ids(output), done)
    return {
        "at_its_end": counts(at_end),
        "late_answers_counted": 0 if late is None else int(late[1].replace(",", "")),
        "resumed": counts(resumed),
        "retried": counts(retried),
        **files,
        **await answered_once(stage),
    }


def output_ids(output: Path) -> set[str]:
    """Each names job, run and row."""
    return {orjson.loads(line)["id"] for line in output.read_bytes().splitlines()}


async def state(stage: Stage, wanted: JobState) -> Standing:
    batch, standing = await stage.batch()
    schema_of(BATCH).validate(batch)
    expect("state", batch["status"], wanted)
    names = ["created_at", "in_progress_at", "finalizing_at", f"{wanted}_at"]
    if wanted is JobState.CANCELLED:
        names.insert(2, "cancelling_at")
    times = [batch[name] for name in names]
    expect("times in their order", times, sorted(times))
    return standing


async def answered_once(stage: Stage) -> dict[str, int]:
    """By the topics."""
    runs = await stage.runs()
    expect("rows with more than one answer", runs["rows_answered_twice"], 0)
    expect("finished rows that were run again", runs["finished_rows_run_again"], 0)
    return runs


def counts(standing: Standing) -> dict[str, int]:
    return {
        "done": standing.completed,
        "failed": standing.failed,
        "expired": standing.expired,
        "cancelled": standing.cancelled,
    }


_STORIES = {"whole": whole, "killed": killed, "cancelled": cancelled, "expired": expired}


async def tell(story: str, rows: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="headrace-stories-") as name:
        folder = Path(name)
        write_rows(folder / "rows.jsonl", rows, bad_rows(rows))
        async with Stage(folder) as stage:
            return await _STORIES[story](stage, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("story", choices=_STORIES)
    parser.add_argument("--rows", type=int, default=2_000)
    arguments = parser.parse_args()
    print(json.dumps(asyncio.run(tell(arguments.story, arguments.rows)), indent=2))


if __name__ == "__main__":
    main()
