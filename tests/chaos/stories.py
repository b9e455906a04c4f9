"""What happens to the workers in the chaos tests: the short versions and the long ones are the same stories.

Each story returns what does not hold at its end: sentences of `tests.chaos.raw_checker`, none if all is well.
"""

import asyncio
import random
import signal
from collections.abc import Sequence

from tests.chaos.cluster import until_in_sync
from tests.chaos.crew import PLACES, Crew, Member
from topics.local_broker import LocalBroker

__all__ = [
    "bounced",
    "broker_away",
    "commit_first",
    "joined_and_left",
    "killed_again_and_again",
    "nodes_bounced",
    "poisoned",
    "read_past_open_transactions",
    "stopped_and_woken",
    "without_the_marker",
]

_PATIENT_MS = 6_000
"""Of a session, where nobody shall be taken for dead because the machine is busy."""
_STOPPED_S = 3.0
"""How long the other worker has after it has taken over."""


async def killed_again_and_again(
    workers: Crew, *, kills: int, requests: int, places: Sequence[str] = PLACES, padding: int = 0
) -> list[str]:
    """Each of `kills` workers dies at the next place; the last one may finish. `padding`: bytes of each request, of
    which workers keep a mebibyte in memory."""
    chance, forgetful = random.Random(7), padding > 0
    await workers.send(requests, padding=padding)
    for number in range(kills):
        await workers.kill_one(places[number % len(places)], visits=chance.randint(2, 5), forgetful=forgetful)
    left = requests - len(set(workers.seen))
    last = await workers.start(forgetful=forgetful)
    await last.until_ready()
    await workers.answered(requests)
    last.signal(signal.SIGTERM)
    await last.ended.wait()
    told = await workers.problems(ends=kills + 1)
    if left < kills:
        told.append(f"only {left} requests were left for the last worker: more requests, or fewer kills")
    return told


_MUTATED_S = 20.0
"""A mutated worker that has not answered by then never will."""


async def stopped_and_woken(
    workers: Crew, *, place: str, stops: int, mutation: str | None = None, stopped_s: float = _STOPPED_S
) -> list[str]:
    """Two workers share the partitions. One stops itself (SIGSTOP) in a transaction, past its session time-out; the
    other takes its partitions over; then the first wakes up and goes on with what it was about. The transaction's
    time-out is longer than the session's, so it may still be committed.
    """
    hook = {"place": place, "visits": 4, "act": "SIGSTOP", "times": stops}
    sleeper = await workers.start(hook=hook, mutation=mutation)
    other = await workers.start(mutation=mutation)
    await asyncio.gather(sleeper.until_ready(), other.until_ready())
    for _ in range(stops):
        workers.kills[await _stopped(workers, sleeper)] += 1
        await workers.members(1)
        try:
            async with asyncio.timeout(stopped_s):
                await workers.answered(len(workers.sent))
        except TimeoutError:
            pass  # as it should be: what stands in the open transaction is nobody's to answer before its end
        sleeper.signal(signal.SIGCONT)
        try:
            async with asyncio.timeout(None if mutation is None else _MUTATED_S):
                await workers.answered(len(workers.sent))
        except TimeoutError:
            pass  # a mutated worker may lose an answer as well as give it twice: both are the checker's to say
    for worker in (sleeper, other):
        worker.signal(signal.SIGTERM)
        await worker.ended.wait()
    return await workers.problems()


async def _stopped(workers: Crew, sleeper: Member) -> str:
    """Send requests until the worker's hook has stopped it: the place. It counts transactions, whose number varies."""
    stopped = asyncio.create_task(sleeper.at.get())
    while not stopped.done():
        await workers.send(60)
        # The open transaction of a stopped worker hides what is answered behind it.
        answered = asyncio.create_task(workers.answered(len(workers.sent) - 40))
        await asyncio.wait({stopped, answered}, return_when=asyncio.FIRST_COMPLETED)
        answered.cancel()
        await asyncio.wait({answered})
    return stopped.result()


async def read_past_open_transactions(workers: Crew) -> list[str]:
    """A mutation: the new owner does not wait for the old one's transaction, and has time to answer the same again."""
    return await stopped_and_woken(workers, place="before-end", stops=1, mutation="unstable", stopped_s=10.0)


async def commit_first(workers: Crew) -> list[str]:
    """A mutation: offsets are committed before the answers, and the worker dies between the two. The next one believes
    what is committed."""
    await workers.send(400)
    await workers.kill_one("open", visits=12, mutation="commit-first")
    worker = await workers.start()
    await worker.until_ready()
    try:
        async with asyncio.timeout(_MUTATED_S):
            await workers.answered(len(workers.sent))
    except TimeoutError:
        pass  # as it should be
    worker.signal(signal.SIGTERM)
    await worker.ended.wait()
    return await workers.problems()


async def bounced(workers: Crew, *, clean: bool, bounces: int, requests: int) -> list[str]:
    """A worker stopped in order (SIGTERM) or killed, wherever it is, and started again, again and again."""
    chance = random.Random(11)
    await workers.send(requests)
    for number in range(1, bounces + 1):
        worker = await workers.start()
        await worker.until_ready()
        await workers.answered(min(number * requests // (bounces + 1), len(set(workers.seen)) + 50))
        await asyncio.sleep(chance.uniform(0.0, 0.1))
        worker.signal(signal.SIGTERM if clean else signal.SIGKILL)
        await worker.ended.wait()
    last = await workers.start()
    await last.until_ready()
    await workers.answered(requests)
    last.signal(signal.SIGTERM)
    await last.ended.wait()
    # Nobody knows what a worker had ended that was killed from without.
    return await workers.problems(ends=bounces + 1 if clean else None)


async def nodes_bounced(
    workers: Crew, nodes: Sequence[LocalBroker], *, clean: bool, bounces: int, requests: int
) -> list[str]:
    """One node of a cluster after the other is stopped or killed under two workers while requests come, and is started
    again when the others have answered; the next one goes when the cluster is whole."""
    crew = [await workers.start() for _ in range(2)]
    await asyncio.gather(*(worker.until_ready() for worker in crew))
    half = requests // bounces // 2
    for number in range(bounces):
        node = nodes[number % len(nodes)]
        await workers.send(half)
        async with asyncio.TaskGroup() as meanwhile:
            meanwhile.create_task(asyncio.to_thread(node.stop if clean else node.kill))
            meanwhile.create_task(workers.send(half))
        await workers.answered(len(workers.sent) - half // 2)
        await asyncio.to_thread(node.start)
        await until_in_sync(nodes)
    await workers.answered(len(workers.sent))
    for worker in crew:
        worker.signal(signal.SIGTERM)
        await worker.ended.wait()
    return await workers.problems()


async def broker_away(workers: Crew, broker: LocalBroker, *, seconds: float) -> list[str]:
    """The only broker is away under two workers that have requests."""
    crew = [await workers.start() for _ in range(2)]
    await asyncio.gather(*(worker.until_ready() for worker in crew))
    await workers.send(400)
    await workers.answered(len(workers.sent) - 300)
    await asyncio.to_thread(broker.stop)
    await asyncio.sleep(seconds)
    await asyncio.to_thread(broker.start)
    await workers.answered(len(workers.sent))
    for worker in crew:
        worker.signal(signal.SIGTERM)
        await worker.ended.wait()
    return await workers.problems()


async def joined_and_left(
    workers: Crew, *, changes: int, every_s: tuple[float, float], requests: int, tokens: int = 12, again: float = 0.02
) -> list[str]:
    """Workers join the group and leave it (half of them by SIGKILL), at random times; at least one stays. `again`: of
    what must be computed, the part that may be computed again, apart from what those had computed that were killed."""
    chance = random.Random(13)
    present = [await workers.start(session_ms=_PATIENT_MS)]
    for _ in range(changes):
        await workers.send(requests // changes, tokens=tokens)
        if len(present) == 1 or (len(present) < 4 and chance.random() < 0.5):
            present.append(await workers.start(session_ms=_PATIENT_MS))
        else:
            leaving = present.pop(chance.randrange(len(present)))
            how = chance.choice([signal.SIGTERM, signal.SIGKILL])
            leaving.signal(how)
            await leaving.ended.wait()
            workers.kills[how.name] += 1
        await asyncio.sleep(chance.uniform(*every_s))
    await workers.answered(len(workers.sent))
    for worker in present:
        worker.signal(signal.SIGTERM)
        await worker.ended.wait()
    told = await workers.problems()
    killed = workers.kills["SIGKILL"] * workers.most_at_once(tokens)
    if workers.computed_again > (most := again * workers.to_compute + killed):
        told.append(f"{workers.computed_again} positions were computed again: {most:.0f} may be")
    return told


async def poisoned(workers: Crew, *, deadly: Sequence[int], requests: int, place: str = "deadly") -> list[str]:
    """Some requests end the process that runs them; whatever dies is started again, until all are answered."""
    await workers.send(requests, deadly=deadly)
    hook = {"place": place, "visits": 1, "act": "SIGKILL", "times": 1}
    worker = await workers.start(hook=hook)
    while await workers.until_killed(worker):
        worker = await workers.start(hook=hook)
    worker.signal(signal.SIGTERM)
    await worker.ended.wait()
    told = await workers.problems(ends=workers.kills.total() + 1)
    if workers.kills[place] > 3 * len(deadly):
        told.append(f"{workers.kills[place]} workers died of {len(deadly)} requests")
    return told


async def without_the_marker(workers: Crew) -> list[str]:
    """A mutation: what an owner says of a stream when it wakes up counts beside what the next one says."""
    return await stopped_and_woken(workers, place="delta", stops=1, mutation="no-marker")
