"""`headrace control` against a running worker: pauses, a change of policy, quotas and the order to leave."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.integration.conftest import read_topic
from tests.integration.sleeping_workers import SleepingWorkers
from topics.client import ReplyTimeoutError, RequestFailedError
from topics.headers import RequestHeaders
from workers.cli import main

pytestmark = pytest.mark.broker

BODY: dict[str, Any] = {"prompt": [100, 101], "temperature": 0, "ignore_eos": True, "max_tokens": 2}


class Operator:
    """The command line, its output as JSON."""

    def __init__(self, workers: SleepingWorkers, capfd: pytest.CaptureFixture[str]) -> None:
        self._connection = ["--bootstrap-servers", workers.bootstrap_servers, "--topic-prefix", workers.prefix]
        self._capfd = capfd

    async def says(self, *order: str) -> tuple[int, Any]:
        self._capfd.readouterr()
        code = await asyncio.to_thread(main, ["control", *order, "--json", *self._connection])
        return code, orjson.loads(self._capfd.readouterr().out)


@pytest.fixture
def operator(workers: SleepingWorkers, capfd: pytest.CaptureFixture[str]) -> Operator:
    return Operator(workers, capfd)


async def test_a_paused_tenant_waits_until_it_is_resumed(workers: SleepingWorkers, operator: Operator) -> None:
    async with workers.run(), workers.client() as client:
        code, told = await operator.says("pause", "--tenant", "acme")
        assert (code, len(told["applied"]), told["late"]) == (0, 1, [])
        await client.send(BODY, priority="p1", headers=RequestHeaders("theirs", tenant="acme"))
        await client.send(BODY, priority="p1", headers=RequestHeaders("other", tenant="other"))
        await client.result("other")
        with pytest.raises(ReplyTimeoutError):
            await client.result("theirs", timeout_s=0.5)
        await client.send(BODY, priority="p1", headers=RequestHeaders("theirs2", tenant="acme"))
        await operator.says("resume", "--tenant", "acme")
        await client.result("theirs2")


async def test_the_policy_is_switched_under_a_running_worker_and_back(
    workers: SleepingWorkers, operator: Operator
) -> None:
    async with workers.run() as running, workers.client() as client:
        for number, (name, policy) in enumerate((("fifo", "fifo"), ("strict", "strict"), ("--reset", "htb"))):
            sent = [f"r{number}-{each}" for each in range(40)]
            for request_id in sent:
                await client.send(BODY, priority="p1", headers=RequestHeaders(request_id, tenant=request_id[-1]))
            code, told = await operator.says("policy", name)
            assert (code, told["problems"]) == (0, {})
            assert running.worker.policy == policy
            for request_id in sent:
                await client.result(request_id)


async def test_an_order_that_cannot_be_obeyed_is_told(
    workers: SleepingWorkers, operator: Operator, tmp_path: Path
) -> None:
    tree = tmp_path / "tree.yaml"
    tree.write_text("classes: [{name: only, priority: p3}]", encoding="utf-8")
    async with workers.run() as running:
        code, told = await operator.says("policy", "fifo", "--tree", str(tree))
        assert code == 1
        (problem,) = told["problems"].values()
        assert "no class for p1" in problem
        assert running.worker.policy == "htb"
        code, told = await operator.says("policy", "--reset")
        assert (code, told["problems"]) == (0, {})


async def test_a_quota_is_set_and_reset(workers: SleepingWorkers, operator: Operator) -> None:
    async with workers.run(), workers.client() as client:
        await operator.says("quota", "--tenant", "t", "--limit", "requests_per_day=1", "--over", "reject")
        # One after the other: of two partitions, either may be read first.
        for name in ("a", "b"):
            await client.send(BODY, priority="p1", headers=RequestHeaders(name, tenant="t"))
            with suppress(RequestFailedError):
                await client.result(name)
        await client.send(BODY, priority="p1", headers=RequestHeaders("c", tenant="t"))
        with pytest.raises(RequestFailedError) as failed:
            await client.result("c")
        assert failed.value.status_code == 429
        await operator.says("quota", "--tenant", "t", "--reset")
        await client.send(BODY, priority="p1", headers=RequestHeaders("d", tenant="t"))
        await client.result("d")


async def test_a_worker_is_drained_and_the_next_of_its_name_serves(
    workers: SleepingWorkers, operator: Operator
) -> None:
    async with workers.run() as running:
        (state,) = (await operator.says("list"))[1]["workers"]
        code, _ = await operator.says("drain", state["worker"])
        assert code == 0
        await running.task
    assert (await operator.says("list"))[1]["workers"] == []
    async with workers.run(), workers.client() as client:
        await client.send(BODY, priority="p1", headers=RequestHeaders("later"))
        await client.result("later")


async def test_a_waiting_request_is_requeued_and_answered_once(workers: SleepingWorkers, operator: Operator) -> None:
    """Its class is paused; in another class it is served, though its body wishes for the first one."""
    async with workers.run(classes="p1,p2") as running, workers.client() as client:
        await operator.says("pause", "--class", "p1")
        await client.send(BODY | {"priority": 1}, priority="p1", headers=RequestHeaders("r", tier="p1"))
        async with asyncio.timeout(30):
            while not running.worker.statistics().engine.waiting:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.01)
        code, _ = await operator.says("requeue", "r", "--to", "p2")
        assert code == 0
        await client.result("r")
    replies = await read_topic(workers.bootstrap_servers, f"{workers.prefix}.replies", isolation_level="read_committed")
    assert [dict(reply.headers)["event"] for reply in replies] == [b"final"]
