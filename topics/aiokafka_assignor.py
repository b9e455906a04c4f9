"""Which member of a group gets which partitions: those that it had, as far as all have about the same number.

Knows aiokafka's sticky assignor (KIP-54) and the insides of its group coordinator as far as the two need one another.
Does not know what is done with partitions that come back (`workers.attempts.carried`). The broker tests hold it to
aiokafka 0.14.

aiokafka keeps a sticky member's memory on the class, so that all consumers of a process would have one in common, and
never tells it the generation, without which two members' claims to one partition can't be told apart. So each consumer
gets a class of its own, which is told.

A member also offers round robin, the default of aiokafka and of earlier releases of ours: a group with such members
goes on under that. Both are offered in one request. Given two assignors, aiokafka would send one request for the first
alone and another for both, and so rebalance twice, or be turned away.
"""

from typing import Any

from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.protocol.group import JoinGroupRequest

__all__ = ["keep_partitions"]


def keep_partitions(consumer: Any, topic: str) -> None:
    """Of an `AIOKafkaConsumer` that is about to join a topic's group: it asks for what it had before."""
    coordinator = consumer._coordinator
    send, look_up = coordinator._send_req, coordinator._lookup_assignor
    round_robin = (RoundRobinPartitionAssignor.name, RoundRobinPartitionAssignor.metadata([topic]).encode())

    class Sticky(StickyPartitionAssignor):  # type: ignore[misc] # aiokafka is untyped
        @classmethod
        def on_assignment(cls, assignment: Any) -> None:
            super().on_assignment(assignment)
            cls.on_generation_assignment(coordinator.generation)

    async def send_with_both(request: Any) -> Any:
        if isinstance(request, JoinGroupRequest):
            request._group_protocols = [*request._group_protocols, round_robin]
        return await send(request)

    def look_up_both(name: str) -> Any:
        return RoundRobinPartitionAssignor if name == RoundRobinPartitionAssignor.name else look_up(name)

    coordinator._assignors = (Sticky,)
    coordinator._send_req = send_with_both
    coordinator._lookup_assignor = look_up_both
