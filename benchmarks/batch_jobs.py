"""How fast a job is submitted and asked about: python -m benchmarks.batch_jobs [--rows 50000] [--row-bytes 490]

On an Apache Kafka of its own: `headrace submit` as a process, repeatedly, with its peak memory; then every row of the
last job is answered, as a worker would, and `headrace status` and `headrace results` are run on what stands there, with
no collector to keep a memo. Prints one JSON; times are of whole processes unless they say otherwise. `loading_s` is the
processor time that `submit` takes to be loaded; `rows_per_processor_s` is of the rest.
"""

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
from aiokafka import AIOKafkaProducer

from topics.admin import KafkaAdmin
from topics.catalogue import Catalogue, create_missing_topics
from topics.headers import EVENT, REQUEST_ID
from topics.jobs.row_ids import RowId, reply_partition_of
from topics.kafka_settings import KafkaSettings
from topics.local_broker import LocalBroker

_MAIN = "import sys; from workers.cli import main; sys.exit(main())"
_PACE = re.compile(r"rows sent in ([0-9.]+) s \(([0-9,]+) rows/s")
_SYSTEM = "Answer in one word."


def write_rows(path: Path, rows: int, row_bytes: int) -> int:
    """Chat requests with one system message, each line about so long; the file's bytes."""
    with path.open("wb") as file:
        for row in range(rows):
            line: dict[str, Any] = {"custom_id": f"request-{row}", "method": "POST", "url": "/v1/chat/completions"}
            messages = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": f"{row}: "}]
            line["body"] = {"model": "smollm2", "messages": messages, "max_tokens": 64, "temperature": 0.7}
            messages[1]["content"] += "word " * (max(0, row_bytes - len(orjson.dumps(line))) // 5)
            file.write(orjson.dumps(line) + b"\n")
    return path.stat().st_size


@dataclass(frozen=True, slots=True)
class Used:
    """By one process, from its start to its end."""

    seconds: float
    processor_s: float
    """Of all its threads: counts less of what other programs did meanwhile."""
    peak_mib: float


def run(servers: str, *words: str | Path) -> tuple[Used, str]:
    """What a `headrace` command took, which must end well, and its standard error."""
    begun_s = time.perf_counter()
    command = [sys.executable, "-c", _MAIN, *map(str, words), "--bootstrap-servers", servers]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        said = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"headrace {words[0]} ended with {process.returncode}: {said}")
    processor_s = used.ru_utime + used.ru_stime
    return Used(time.perf_counter() - begun_s, processor_s, used.ru_maxrss / 1024), said


async def answer_all(servers: str, catalogue: Catalogue, job_id: str, rows: int) -> None:
    """A final for each row, of sixty tokens or so."""
    message = {"role": "assistant", "content": "word " * 60, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    usage = {"prompt_tokens": 30, "completion_tokens": 60, "total_tokens": 90}
    body = {"object": "chat.completion", "created": 1, "model": "smollm2", "choices": [choice], "usage": usage}
    partition = reply_partition_of(job_id, catalogue.reply_partitions)
    async with AIOKafkaProducer(bootstrap_servers=servers, max_batch_size=2**19, linger_ms=5) as producer:
        for row in range(rows):
            request_id = str(RowId(job_id, 1, row))
            headers = [(EVENT, b"final"), (REQUEST_ID, request_id.encode())]
            value = orjson.dumps({"id": f"chatcmpl-{request_id}", **body})
            await producer.send(catalogue.replies, value, partition=partition, headers=headers)
        await producer.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--row-bytes", type=int, default=490, help="of a line (490); 4100 makes a file of 200 MB")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-batch-") as name:
        folder = Path(name)
        file_bytes = write_rows(folder / "rows.jsonl", arguments.rows, arguments.row_bytes)
        broker = LocalBroker(folder / "broker")
        broker.start()
        try:
            print(json.dumps(measure(broker.bootstrap_servers, folder, arguments, file_bytes), indent=2))
        finally:
            broker.stop()


def measure(servers: str, folder: Path, arguments: argparse.Namespace, file_bytes: int) -> dict[str, Any]:
    catalogue = Catalogue()

    async def create() -> None:
        async with KafkaAdmin(KafkaSettings(servers)) as admin:
            await create_missing_topics(admin, catalogue)

    asyncio.run(create())
    paces, submits = [], []
    for number in range(arguments.repeats):
        used, said = run(servers, "submit", folder / "rows.jsonl", "--job-id", f"job-{number}")
        pace = _PACE.search(said)
        assert pace is not None, said
        paces.append(float(pace[1]))
        submits.append(asdict(used))
    loading, _ = run(servers, "submit", folder / "rows.jsonl", "--help")
    worked_s = statistics.median(submit["processor_s"] for submit in submits) - loading.processor_s
    last = f"job-{arguments.repeats - 1}"
    asyncio.run(answer_all(servers, catalogue, last, arguments.rows))
    status, _ = run(servers, "status", last)
    results, _ = run(servers, "results", last, "--output", folder / "out.jsonl")
    return {
        "rows": arguments.rows,
        "file_bytes": file_bytes,
        "rows_per_s": arguments.rows / statistics.median(paces),
        "rows_per_processor_s": arguments.rows / worked_s,
        "loading_s": loading.processor_s,
        "submits": submits,
        "status": asdict(status),
        "results": asdict(results),
    }


if __name__ == "__main__":
    main()
