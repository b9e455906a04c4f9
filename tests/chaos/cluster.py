"""Three Kafka nodes on this machine, each broker and controller, everything on them thrice and acknowledged by two.

Knows what makes local brokers one cluster, and when it is whole again after one was away. Does not know what is sent
through it. One node of the three may be gone at a time: then nothing that was acknowledged is lost, and all goes on.
"""

import asyncio
import base64
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient

from topics.broker_config import Endpoints, free_port
from topics.local_broker import LocalBroker

__all__ = ["addresses", "three_nodes", "until_in_sync"]

_NODES = 3
_HEAP_MB = 256
_PROPERTIES = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    # They share two slow cores: a node that was slow for a second is not gone.
    "controller.quorum.election.timeout.ms": "3000",
    "controller.quorum.fetch.timeout.ms": "6000",
}


@contextmanager
def three_nodes(folder: Path, properties: Mapping[str, str]) -> Iterator[tuple[LocalBroker, ...]]:
    """They run and answer. `properties`: further ones of each node."""
    ports: set[int] = set()
    while len(ports) < 2 * _NODES:
        ports.add(free_port())
    endpoints = [Endpoints(ports.pop(), ports.pop()) for _ in range(_NODES)]
    voters = ",".join(f"{number}@127.0.0.1:{each.controller_port}" for number, each in enumerate(endpoints, 1))
    cluster_id = base64.urlsafe_b64encode(os.urandom(16)).rstrip(b"=").decode("ascii")
    nodes = []
    for number, each in enumerate(endpoints, 1):
        state_dir = folder / f"node{number}"
        state_dir.mkdir()
        each.save(state_dir)
        own = {"node.id": str(number), "controller.quorum.voters": voters}
        nodes.append(
            LocalBroker(
                state_dir,
                port=each.port,
                cluster_id=cluster_id,
                heap_mb=_HEAP_MB,
                start_timeout_s=180.0,
                extra_properties={**_PROPERTIES, **properties, **own},
            )
        )
    with ThreadPoolExecutor(_NODES) as threads:
        try:
            # All at once: none of them answers before two are there.
            list(threads.map(LocalBroker.start, nodes))
            asyncio.run(until_in_sync(nodes))
            yield tuple(nodes)
        finally:
            list(threads.map(LocalBroker.kill, nodes))


def addresses(nodes: Sequence[LocalBroker]) -> str:
    """Of all nodes, so that a client finds one that is there."""
    return ",".join(node.bootstrap_servers for node in nodes)


async def until_in_sync(nodes: Sequence[LocalBroker]) -> None:
    """Return when every node is there and every replica has all that was acknowledged: one may go, whichever."""
    admin = AIOKafkaAdminClient(bootstrap_servers=addresses(nodes))
    await admin.start()
    try:
        while not _whole(await admin.describe_cluster(), await admin.describe_topics(), len(nodes)):  # noqa: ASYNC110 - nothing says so
            await asyncio.sleep(0.1)
    finally:
        await admin.close()


def _whole(cluster: Mapping[str, Any], topics: Sequence[Mapping[str, Any]], nodes: int) -> bool:
    partitions = [each for topic in topics for each in topic["partitions"]]
    return len(cluster["brokers"]) == nodes and all(
        each["leader"] >= 0 and len(each["isr"]) == len(each["replicas"]) for each in partitions
    )
