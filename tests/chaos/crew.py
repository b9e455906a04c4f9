"""A crew of worker processes on a broker of their own, and the requests that they are given.

Knows how processes are started, waited for and ended, and how requests are produced. Does not know what must hold of
the answers (`tests.chaos.raw_checker`).
"""

import asyncio
import json
import os
import signal
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

from tests.chaos.raw_checker import Sent, positions, problems, run_again
from topics.admin import KafkaAdmin
from topics.catalogue import Catalogue, create_missing_topics
from topics.kafka_settings import KafkaSettings

__all__ = ["BROKER_PROPERTIES", "PLACES", "Crew", "Member", "Zygote", "zygote"]

T = TypeVar("T")
BROKER_PROPERTIES = {"group.min.session.timeout.ms": "500"}
DEADLY = 77
PLACES = ("staging", "prefill", "decode", "open", "before-end")
"""See `tests.chaos.hooks`, which a test's own process doesn't import: that takes seconds."""
_SESSION_MS = 1_000
_PROMPT = 3
"""Tokens of each prompt."""
_SLOTS = 16
_STAGED = 2 * _SLOTS
"""Begun and waiting for a slot: see `scheduling.staged_rows`."""


@dataclass
class Member:
    """A worker process."""

    pid: int
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    at: "asyncio.Queue[str]" = field(default_factory=asyncio.Queue)
    """Places that its hook has acted at."""
    computed: int = 0
    """Positions, when it has ended."""
    undelivered: int = 0
    """Answers that had ended in the engine and were not delivered when its hook acted last."""

    async def until_ready(self) -> None:
        """Return when it serves. Raises `RuntimeError` if it ends before: its log says why."""
        waits = {asyncio.create_task(self.ready.wait()), asyncio.create_task(self.ended.wait())}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)
        if not self.ready.is_set():
            raise RuntimeError(f"the worker {self.pid} ended before it was ready")

    def signal(self, number: signal.Signals) -> None:
        assert not self.ended.is_set(), "its process id may be another's"
        os.kill(self.pid, number)


class Zygote:
    """The process that workers are forked from: see `tests.chaos.zygote`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._loaded = asyncio.Event()
        self._gone = asyncio.Event()
        self._process = process
        self._members: dict[int, Member] = {}
        self._started: asyncio.Queue[Member] = asyncio.Queue()

    async def fork(self, order: Mapping[str, Any]) -> Member:
        """Raises `RuntimeError` if it has ended: its log says why."""
        await self._unless_gone(self._loaded.wait())
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        return await self._unless_gone(self._started.get())

    async def _unless_gone(self, wanted: Coroutine[Any, Any, T]) -> T:
        waits = asyncio.create_task(wanted), asyncio.create_task(self._gone.wait())
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)
        if waits[0].cancelled():
            raise RuntimeError("the process that workers are forked from has ended")
        return waits[0].result()

    async def listen(self) -> None:
        """Read what the processes say, until they are gone."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            said = json.loads(line)
            event, pid = said["event"], said["pid"]
            if event == "loaded":
                self._loaded.set()
                continue
            # A child may speak before its parent tells of it.
            member = self._members.setdefault(pid, Member(pid))
            if event == "started":
                self._started.put_nowait(member)
            elif event == "ready":
                member.ready.set()
            elif event == "at":
                member.undelivered = said["undelivered"]
                member.at.put_nowait(said["place"])
            elif event == "ended":
                del self._members[pid]
                member.computed = said["computed"]
                member.ended.set()
        self._gone.set()


@asynccontextmanager
async def zygote(model: str, log: Path) -> AsyncIterator[Zygote]:
    """`model`: sleeping or smollm2. Whatever runs at the end is killed."""
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.chaos.zygote", model),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
    built = Zygote(process)
    listening = asyncio.create_task(built.listen())
    try:
        yield built
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()
        await listening


class Crew:
    """Workers that share one class's topic of a prefix of their own, and a reader of what they answer."""

    def __init__(self, bootstrap_servers: str, workers: Zygote) -> None:
        prefix = f"c{uuid.uuid4().hex[:12]}"
        self.bootstrap_servers = bootstrap_servers
        self.catalogue = Catalogue(prefix, group_prefix=prefix, request_partitions=2, reply_partitions=2)
        self.topic = self.catalogue.requests("p1")
        self.sent: list[Sent] = []
        self.kills: Counter[str] = Counter()
        """Where processes were killed by their hooks."""
        self._undelivered = 0
        """Answers that had ended in their engines by then, and were not delivered."""
        self.run_again = 0
        """Attempts that were not the first, of all that were answered."""
        self.to_compute = self.computed_again = 0
        """Positions, when all workers have ended."""
        self._members: list[Member] = []
        """That were started."""
        self.seen: list[str] = []
        """Request ids of terminal replies, as a reader of committed records sees them during the run."""
        self._news = asyncio.Event()
        self._workers = workers

    # --- workers --------------------------------------------------------------------------------------------------

    async def start(self, *, session_ms: int = _SESSION_MS, forgetful: bool = False, **order: Any) -> Member:
        """A worker. `forgetful`: it keeps as few payloads in memory as may be configured. `order`: its hook and
        mutation, see `tests.chaos.zygote`."""
        config: dict[str, Any] = {
            "classes": "p1",
            "kafka": {
                "bootstrap_servers": self.bootstrap_servers,
                "topic_prefix": self.catalogue.prefix,
                "group_prefix": self.catalogue.group_prefix,
                "session_timeout_ms": session_ms,
                # A stopped worker's transaction stays open, however slow the machine is.
                "transaction_timeout_ms": 60_000,
            },
            "engine": {"max_sequences": _SLOTS, "dtype": "float32"},
        }
        if forgetful:
            config["ingress"] = {"max_bytes": 2**20}
        self._members.append(await self._workers.fork({"config": config, **order}))
        return self._members[-1]

    async def kill_one(self, place: str, visits: int, **order: Any) -> None:
        """A worker that dies at its n-th visit of a place."""
        hook = {"place": place, "visits": visits, "act": "SIGKILL", "times": 1}
        worker = await self.start(hook=hook, **order)
        await worker.ended.wait()
        if worker.at.empty():
            raise RuntimeError(f"the worker {worker.pid} ended by itself")
        self._count_kill(worker)

    async def until_killed(self, worker: Member) -> bool:
        """Whether the worker dies before everything is answered."""
        waits = [asyncio.create_task(worker.ended.wait()), asyncio.create_task(self.answered(len(self.sent)))]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)
        if worker.ended.is_set():
            self._count_kill(worker)
        return worker.ended.is_set()

    def _count_kill(self, worker: Member) -> None:
        self.kills[worker.at.get_nowait()] += 1
        self._undelivered += worker.undelivered

    async def members(self, count: int) -> None:
        """Return when the group has so many members, and each has its partitions."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap_servers)
        await admin.start()
        try:
            while True:
                (answer,) = await admin.describe_consumer_groups([self.catalogue.group("p1")])
                _, _, state, _, _, members = answer.groups[0]
                if state == "Stable" and len(members) == count:
                    return
                await asyncio.sleep(0.05)
        finally:
            await admin.close()

    # --- requests -------------------------------------------------------------------------------------------------

    async def send(self, count: int, *, tokens: int = 12, deadly: Collection[int] = (), padding: int = 0) -> None:
        """Completions of 1 to `tokens` tokens, half of them streamed. `deadly`: places among them of requests that
        end the process that runs them, where its hook is for that. `padding`: bytes more of each record."""
        first = len(self.sent)
        # What is acknowledged is there once, whichever node goes.
        async with AIOKafkaProducer(bootstrap_servers=self.bootstrap_servers, enable_idempotence=True) as producer:
            under_way = []
            for number in range(first, first + count):
                stream = number // 2 % 2 == 0  # in both partitions
                kills = number - first in deadly
                prompt = [100 + number % 7, DEADLY if kills else 101, 102 + number % 11]
                body = {"prompt": prompt, "max_tokens": 1 + number % tokens}
                body |= {"temperature": 0, "seed": number % 97, "ignore_eos": True, "stream": stream}
                request_id = f"r{number:06}"
                sent = await producer.send(
                    self.topic,
                    json.dumps(body).encode(),
                    partition=number % 2,
                    headers=[
                        ("request-id", request_id.encode()),
                        ("tenant", b"t%d" % (number % 5)),
                        ("padding", bytes(padding)),
                    ],
                )
                under_way.append((request_id, stream, kills, sent))
            for request_id, stream, kills, sent in under_way:
                place = await sent
                self.sent.append(Sent(request_id, place.topic, place.partition, place.offset, stream, kills))

    async def answered(self, count: int) -> None:
        """Return when the reader has seen so many different requests answered."""
        while len(set(self.seen)) < count:
            self._news.clear()
            await self._news.wait()

    async def problems(self, *, ends: int | None = None) -> list[str]:
        """What does not hold of the answers. `ends`: of workers by their hooks or in order, of which one was there at a
        time: what they ran, what waited for a slot and what was not delivered may have been run again, and no more."""
        prefix, group = self.catalogue.prefix, self.catalogue.group("p1")
        told = await problems(self.bootstrap_servers, prefix, group, self.sent)
        self.run_again = await run_again(self.bootstrap_servers, prefix)
        computed = sum(member.computed for member in self._members)
        self.to_compute = await positions(self.bootstrap_servers, prefix)
        self.computed_again = computed - self.to_compute
        if ends is not None and self.run_again > (most := ends * (_SLOTS + _STAGED) + self._undelivered):
            told.append(f"{self.run_again} attempts were not the first, after {ends} ends of a worker: {most} may be")
        if len(self.seen) != len(set(self.seen)):
            told.append("a reader during the run saw a request answered twice")
        return told

    @staticmethod
    def most_at_once(tokens: int) -> int:
        """Positions that a worker may have computed of answers that it has not given, where they have so many tokens at
        most."""
        return _SLOTS * (_PROMPT + tokens)

    async def _read_along(self) -> None:
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

    async def __aenter__(self) -> Self:
        async with KafkaAdmin(KafkaSettings(self.bootstrap_servers)) as admin:
            await create_missing_topics(admin, self.catalogue)
        self._reading = asyncio.create_task(self._read_along())
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._reading.cancel()
        await asyncio.wait({self._reading})
