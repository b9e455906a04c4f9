"""What each tenant has used: the usage records of PREFIX.usage, summed by tenant and class.

Records are kept for 90 days unless the topic says otherwise. --since leaves out requests that ended before.
"""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

import orjson
from rich.console import Console
from rich.table import Table

from topics.admin import AdminError, KafkaAdmin
from topics.catalogue import Catalogue
from topics.kafka_settings import KafkaSettings
from topics.partition_reader import PartitionReader
from topics.usage import UsageRecord
from workers.cli import UsageError
from workers.commands.connection import add_kafka_arguments, connection, kafka_config
from workers.commands.explained import explained

__all__ = ["UsageSum", "add_arguments", "run", "sums"]


@dataclass(slots=True)
class UsageSum:
    requests: int = 0
    completed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost: int = 0

    def add(self, usage: UsageRecord) -> None:
        self.requests += 1
        self.completed += usage.completed
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self.output_tokens += usage.output_tokens
        self.cost += usage.cost


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_kafka_arguments(parser)
    parser.add_argument("--tenant", help="only this one")
    parser.add_argument("--since", metavar="TIME", help="only what ended since: 2026-11-01, or 2026-11-01T08:00+01:00")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each tenant and class")


def run(arguments: argparse.Namespace) -> int:
    since_ms = 0 if arguments.since is None else _milliseconds(arguments.since)
    config = kafka_config(arguments)
    with explained():
        settings = connection(config, "headrace-usage")
        found = asyncio.run(sums(settings, Catalogue(config.topic_prefix).usage, since_ms, arguments.tenant))
    if arguments.json:
        for (tenant, priority), used in sorted(found.items()):
            sys.stdout.buffer.write(orjson.dumps({"tenant": tenant, "class": priority, **asdict(used)}) + b"\n")
        sys.stdout.buffer.flush()
    else:
        Console(highlight=False).print(_table(found))
    return 0


async def sums(
    settings: KafkaSettings, topic: str, since_ms: int = 0, tenant: str | None = None
) -> dict[tuple[str, str], UsageSum]:
    """By tenant and class. A key that stands there twice counts once, as it was written last."""
    latest = {
        key: usage
        async for key, usage in _records(settings, topic)
        if usage.ended_at_ms >= since_ms and tenant in (None, usage.tenant)
    }
    found: dict[tuple[str, str], UsageSum] = {}
    for usage in latest.values():
        found.setdefault((usage.tenant, usage.priority), UsageSum()).add(usage)
    return found


async def _records(settings: KafkaSettings, topic: str) -> AsyncIterator[tuple[bytes | None, UsageRecord]]:
    async with KafkaAdmin(settings) as admin:
        topics = (await admin.cluster()).topics
    if topic not in topics:
        raise AdminError(f"there is no topic {topic}: run `headrace topics create`")
    for partition in range(topics[topic].partitions):
        async with PartitionReader(settings, topic, partition, read_committed=True) as reader:
            async for records in reader.read_to_end():
                for record in records:
                    yield record.key, UsageRecord.decode(record)


def _milliseconds(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--since {text!r}: write a date, or date and time, as 2026-11-01T08:00+01:00") from error
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _table(found: dict[tuple[str, str], UsageSum]) -> Table:
    table = Table("tenant", "class")
    for name in ("requests", "completed", "prompt", "cached", "output", "cost"):
        table.add_column(name, justify="right")
    for (tenant, priority), used in sorted(found.items()):
        table.add_row(tenant, priority, *(f"{value:,}" for value in asdict(used).values()))
    return table
