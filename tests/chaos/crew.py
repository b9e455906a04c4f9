"""A crew of worker processes on a broker of their own, and the requests that they are given.

Knows how processes are started, waited for and ended, and how requests are produced. Does not know what must hold of
the answers (`tests.chaos.raw_checker`).
"""

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from tests.chaos.raw_checker import Sent
from topics.admin import KafkaAdmin
from topics.catalogue import Catalogue, create_missing_topics
from topics.kafka_settings import KafkaSettings

__all__ = ["BROKER_PROPERTIES", "PLACES", "Crew", "Member", "crew"]

BROKER_PROPERTIES = {"group.min.session.timeout.ms": "500"}
PLACES = ("staging", "prefill", "decode", "open", "before-end")
"""See `tests.chaos.hooks`, which a test's own process doesn't import: that takes seconds."""
_SESSION_MS = 1_000


@dataclass
class Member:
    """A worker process."""

    pid: int
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    at: "asyncio.Queue[str]" = field(default_factory=asyncio.Queue)
    """Places that its hook has acted at."""


class Crew:
    def __init__(self, bootstrap_servers: str, prefix: str, process: asyncio.subprocess.Process) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.catalogue = Catalogue(prefix, group_prefix=prefix, request_partitions=2, reply_partitions=2)
        self.topic = self.catalogue.requests("p1")
        self.group = self.catalogue.group("p1")
        self.sent: list[Sent] = []
        self.kills: Counter[str] = Counter()
        """Where processes were stopped or killed."""
        self.seen: list[str] = []
        """Request ids of terminal replies, as a reader of committed records sees them during the run."""
        self._news = asyncio.Event()
        self._process = process
        self._members: dict[int, Member] = {}
        self._started: asyncio.Queue[Member] = asyncio.Queue()
        self.loaded = asyncio.Event()

    # --- workers --------------------------------------------------------------------------------------------------

    async def start(self, *, kill: tuple[str, int] | None = None, **order: Any) -> Member:
        """A worker. `kill`: it dies at the n-th visit of a place. `order`: see `tests.chaos.zygote`."""
        config: dict[str, Any] = {
            "classes": "p1",
            "kafka": {
                "bootstrap_servers": self.bootstrap_servers,
                "topic_prefix": self.catalogue.prefix,
                "group_prefix": self.catalogue.group_prefix,
                "session_timeout_ms": _SESSION_MS,
            },
            "engine": {"max_sequences": 16, "dtype": "float32"},
        }
        if kill is not None:
            order["hook"] = {"place": kill[0], "visits": kill[1], "act": "SIGKILL", "times": 1}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"config": config, **order}).encode() + b"\n")
        return await self._started.get()

    @staticmethod
    def signal(member: Member, number: signal.Signals) -> None:
        assert not member.ended.is_set(), "its process id may be another's"
        os.kill(member.pid, number)

    async def listen(self) -> None:
        """Read what the processes say, until they are gone."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            said = json.loads(line)
            event, pid = said["event"], said["pid"]
            if event == "loaded":
                self.loaded.set()
                continue
            # A child may speak before its parent tells of it.
            member = self._members.setdefault(pid, Member(pid))
            if event == "started":
                self._started.put_nowait(member)
            elif event == "ready":
                member.ready.set()
            elif event == "at":
                self.kills[said["place"]] += 1
                member.at.put_nowait(said["place"])
            elif event == "ended":
                member.ended.set()

    # --- requests -------------------------------------------------------------------------------------------------

    async def create_topics(self) -> None:
        async with KafkaAdmin(KafkaSettings(self.bootstrap_servers)) as admin:
            await create_missing_topics(admin, self.catalogue)

    async def send(self, count: int, *, tokens: int = 12) -> None:
        """Completions of 1 to `tokens` tokens, every second one streamed."""
        first = len(self.sent)
        async with AIOKafkaProducer(bootstrap_servers=self.bootstrap_servers) as producer:
            under_way = []
            for number in range(first, first + count):
                stream = number % 2 == 0
                body = {"prompt": [100 + number % 7, 101, 102 + number % 11], "max_tokens": 1 + number % tokens}
                body |= {"temperature": 0, "seed": number % 97, "ignore_eos": True, "stream": stream}
                request_id = f"r{number:06}"
                sent = await producer.send(
                    self.topic,
                    json.dumps(body).encode(),
                    partition=number % 2,
                    headers=[("request-id", request_id.encode()), ("tenant", b"t%d" % (number % 5))],
                )
                under_way.append((request_id, stream, sent))
            for request_id, stream, sent in under_way:
                place = await sent
                self.sent.append(Sent(request_id, place.topic, place.partition, place.offset, stream))

    async def read_along(self) -> None:
        """A reader of committed replies, during the run."""
        consumer = AIOKafkaConsumer(
            self.catalogue.replies,
            bootstrap_servers=self.bootstrap_servers,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        await consumer.start()
        try:
            async for record in consumer:
                self.seen.append(dict(record.headers)["request-id"].decode())
                self._news.set()
        finally:
            await consumer.stop()

    async def answered(self, count: int) -> None:
        """Return when the reader has seen so many different requests answered."""
        while len(set(self.seen)) < count:
            self._news.clear()
            await self._news.wait()


@asynccontextmanager
async def crew(bootstrap_servers: str, prefix: str, model: str, log: Path) -> AsyncIterator[Crew]:
    """With its topics made, its model loaded, and nothing running. Whatever runs at the end is killed."""
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.chaos.zygote", model),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
    built = Crew(bootstrap_servers, prefix, process)
    listening = asyncio.create_task(built.listen())
    reading: asyncio.Task[None] | None = None
    try:
        await built.create_topics()
        reading = asyncio.create_task(built.read_along())
        await built.loaded.wait()
        yield built
    finally:
        if reading is not None:
            reading.cancel()
            await asyncio.wait({reading})
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()
        await listening
