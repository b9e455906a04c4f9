"""Two requests of Kafka's that aiokafka has only in old versions: the two sides of KIP-447's fence.

Knows aiokafka's protocol types and the insides of its producer and its group coordinator as far as these two requests
need. Does not know what is committed, or when (`topics.transactional_replies`, `topics.consumer`). The contract tests
hold it to aiokafka 0.14 and to the broker.

The danger: an owner that was stopped (SIGSTOP, a long pause) past its session time-out, whose partitions have gone to
another, wakes up and commits a transaction with answers that the other gives as well. Two versions close it:

- **TxnOffsetCommit 3** carries the member and the generation under which the records came: an old one is refused, with
  the whole transaction. aiokafka's version 0 carries none (aiokafka#844).
- **OffsetFetch 7** with `require_stable` does not answer for a partition whose offsets stand in a transaction that is
  still open. So the new owner starts nothing until the old one's transaction has ended, either way; and from then on
  the first rule refuses it. aiokafka's version 3 reads past it.

A generation of −1 stands for "no member" and is let through unfenced by the broker: it is never sent.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from aiokafka import TopicPartition
from aiokafka.client import CoordinationType
from aiokafka.errors import (
    CoordinatorNotAvailableError,
    GroupAuthorizationFailedError,
    KafkaError,
    NotCoordinatorError,
    for_code,
)
from aiokafka.producer.sender import TxnOffsetCommitHandler
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields
from aiokafka.structs import OffsetAndMetadata

__all__ = [
    "CommitFencedError",
    "CommittedOffset",
    "GroupMember",
    "commit_in_transaction",
    "fetch_stable_offsets",
    "group_member",
    "read_positions_stably",
    "wait_for_stable_offsets",
]

logger = logging.getLogger(__name__)

_UNSTABLE_OFFSET_COMMIT = 88
_UNKNOWN_OFFSET = -1
_ASK_AGAIN_S = 0.05
_REBALANCE_IN_PROGRESS = 27
_FENCED = {
    22: "its generation is over",
    25: "the group has no such member",
    _REBALANCE_IN_PROGRESS: "the group rebalances",
    82: "another process has its instance id",
}


class CommitFencedError(Exception):
    """The group has moved on: this member may not commit for these partitions. The transaction can only be aborted."""

    def __init__(self, message: str, *, for_good: bool) -> None:
        """`for_good`: nothing that came under this member and generation can ever be committed."""
        super().__init__(message)
        self.for_good = for_good


@dataclass(frozen=True, slots=True)
class GroupMember:
    """Whose word a commit is: the assignment under which the records came."""

    group: str
    member_id: str
    generation: int
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    offset: int
    metadata: str


def group_member(consumer: Any) -> GroupMember:
    """The membership that an `AIOKafkaConsumer` has now."""
    coordinator = consumer._coordinator
    return GroupMember(
        coordinator.group_id, coordinator.member_id, coordinator.generation, coordinator._group_instance_id
    )


# --- the producer's side ----------------------------------------------------------------------------------------------


class _TxnOffsetCommitResponse(Response):  # type: ignore[misc] # aiokafka is untyped
    API_KEY = 28
    API_VERSION = 3
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "errors",
            CompactArray(
                ("topic", CompactString("utf-8")),
                ("partitions", CompactArray(("partition", Int32), ("error_code", Int16), ("tags", TaggedFields))),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _TxnOffsetCommitStruct(RequestStruct):  # type: ignore[misc] # aiokafka is untyped
    API_KEY = 28
    API_VERSION = 3
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _TxnOffsetCommitResponse
    SCHEMA = Schema(
        ("transactional_id", CompactString("utf-8")),
        ("group_id", CompactString("utf-8")),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        ("generation_id", Int32),
        ("member_id", CompactString("utf-8")),
        ("group_instance_id", CompactString("utf-8")),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                        ("metadata", CompactString("utf-8")),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _TxnOffsetCommitRequest(Request[_TxnOffsetCommitStruct]):  # type: ignore[misc] # aiokafka is untyped
    API_KEY = 28

    def __init__(self, *fields: Any) -> None:
        self._fields = fields

    def build(self, request_struct_class: type[_TxnOffsetCommitStruct]) -> _TxnOffsetCommitStruct:
        return request_struct_class(*self._fields)


class _FencedCommit(TxnOffsetCommitHandler):  # type: ignore[misc] # aiokafka is untyped
    """aiokafka's handler with the member in the request, and its refusal as an error that only ends the transaction.

    Not by aiokafka's own `error_transaction`: it forgets what was added to the transaction, so that the abort which
    follows says nothing to the broker, and the next transaction's commit commits the refused one's records as well.
    """

    def __init__(self, sender: Any, offsets: Mapping[TopicPartition, Any], member: GroupMember) -> None:
        super().__init__(sender, offsets, member.group)
        self._member = member

    def create_request(self) -> _TxnOffsetCommitRequest:
        transaction = self._sender._txn_manager
        partitions: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        for place, committed in sorted(self._offsets.items()):
            partitions[place.topic].append((place.partition, committed.offset, -1, committed.metadata, {}))
        return _TxnOffsetCommitRequest(
            transaction.transactional_id,
            self._member.group,
            transaction.producer_id,
            transaction.producer_epoch,
            self._member.generation,
            self._member.member_id,
            self._member.instance_id,
            [(topic, entries, {}) for topic, entries in partitions.items()],
            {},
        )

    def handle_response(self, response: Any) -> float | None:
        plain = [
            (topic, [(partition, code) for partition, code, _ in entries]) for topic, entries, _ in response.errors
        ]
        for _, entries in plain:
            for _, code in entries:
                if code in _FENCED:
                    error = CommitFencedError(
                        f"a commit of {self._member} was refused: {_FENCED[code]}",
                        for_good=code != _REBALANCE_IN_PROGRESS,
                    )
                    _, _, waiting = self._sender._txn_manager._pending_txn_offsets.popleft()
                    waiting.set_exception(error)
                    return None
        backoff: float | None = super().handle_response(_PlainErrors(plain))
        return backoff


@dataclass(frozen=True, slots=True)
class _PlainErrors:
    """The answer as version 0 has it."""

    errors: list[tuple[str, list[tuple[int, int]]]]


async def commit_in_transaction(
    producer: Any, offsets: Mapping[TopicPartition, CommittedOffset], member: GroupMember
) -> None:
    """Put these offsets into the open transaction of an `AIOKafkaProducer`, in the name of `member`.

    Raises `CommitFencedError` (then only `abort_transaction` is left, and the producer goes on) and `KafkaError`.
    """
    if member.generation < 0:
        raise CommitFencedError(f"{member} is no member of its group", for_good=True)
    sender = producer._sender

    async def fenced(committed: Mapping[TopicPartition, Any], _group: str) -> None:
        try:
            node = await sender._find_coordinator(CoordinationType.GROUP, member.group)
        except GroupAuthorizationFailedError as error:
            sender._txn_manager.error_transaction(error)
            return
        await _FencedCommit(sender, committed, member).do(node)

    sender._do_txn_offset_commit = fenced
    await producer.send_offsets_to_transaction(
        {place: OffsetAndMetadata(each.offset, each.metadata) for place, each in offsets.items()}, member.group
    )


# --- the consumer's side ----------------------------------------------------------------------------------------------


class _OffsetFetchResponse(Response):  # type: ignore[misc] # aiokafka is untyped
    API_KEY = 9
    API_VERSION = 7
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                        ("metadata", CompactString("utf-8")),
                        ("error_code", Int16),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("error_code", Int16),
        ("tags", TaggedFields),
    )


class _OffsetFetchStruct(RequestStruct):  # type: ignore[misc] # aiokafka is untyped
    API_KEY = 9
    API_VERSION = 7
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _OffsetFetchResponse
    SCHEMA = Schema(
        ("group_id", CompactString("utf-8")),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")), ("partitions", CompactArray(Int32)), ("tags", TaggedFields)
            ),
        ),
        ("require_stable", Boolean),
        ("tags", TaggedFields),
    )


class _OffsetFetchRequest(Request[_OffsetFetchStruct]):  # type: ignore[misc] # aiokafka is untyped
    API_KEY = 9

    def __init__(self, *fields: Any) -> None:
        self._fields = fields

    def build(self, request_struct_class: type[_OffsetFetchStruct]) -> _OffsetFetchStruct:
        return request_struct_class(*self._fields)


async def fetch_stable_offsets(
    consumer: Any, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, CommittedOffset | None]:
    """What the consumer's group has committed, None where nothing is; one try.

    Partitions of whose offsets some stand in an open transaction are left out: ask again. Raises `KafkaError`, most of
    them retriable.
    """
    if not partitions:
        return {}
    coordinator = consumer._coordinator
    wanted: dict[str, list[int]] = defaultdict(list)
    for place in partitions:
        wanted[place.topic].append(place.partition)
    topics: list[tuple[Any, ...]] = [(topic, numbers, {}) for topic, numbers in wanted.items()]
    await coordinator.ensure_coordinator_known()
    response = await coordinator._send_req(_OffsetFetchRequest(coordinator.group_id, topics, True, {}))
    _raise_for(coordinator, response.error_code)
    stable: dict[TopicPartition, CommittedOffset | None] = {}
    for topic, entries, _ in response.topics:
        for partition, offset, _, metadata, code, _ in entries:
            if code == _UNSTABLE_OFFSET_COMMIT:
                continue
            _raise_for(coordinator, code)
            known = None if offset == _UNKNOWN_OFFSET else CommittedOffset(offset, metadata or "")
            stable[TopicPartition(topic, partition)] = known
    return stable


async def wait_for_stable_offsets(
    consumer: Any, partitions: Collection[TopicPartition], *, timeout_s: float
) -> dict[TopicPartition, CommittedOffset | None]:
    """The same of all of them, however often it must be asked. Raises `TimeoutError`, `KafkaError`."""
    async with asyncio.timeout(timeout_s):
        while True:
            try:
                stable = await fetch_stable_offsets(consumer, partitions)
            except KafkaError as error:
                if not error.retriable:
                    raise
                stable = {}
            if len(stable) == len(partitions):
                return stable
            await asyncio.sleep(_ASK_AGAIN_S)


def _raise_for(coordinator: Any, code: int) -> None:
    if code == 0:
        return
    error = for_code(code)
    if issubclass(error, NotCoordinatorError | CoordinatorNotAvailableError):
        coordinator.coordinator_dead()
    raise error()


OnCommitted = Callable[[TopicPartition, CommittedOffset | None], Awaitable[None]]


def read_positions_stably(consumer: Any, on_committed: OnCommitted) -> None:
    """Let a consumer begin each assigned partition where the group's last *stable* commit says.

    `on_committed` is awaited with it before the first record of the partition is fetched; while it raises `KafkaError`
    or `TimeoutError` the partition waits. Limit: while one waits, aiokafka fetches nothing from the same broker.
    """
    coordinator = consumer._coordinator

    async def refresh(assignment: Any) -> bool:
        """In the place of aiokafka's own. False: ask again, soon."""
        wanted = assignment.requesting_committed()
        try:
            stable = await fetch_stable_offsets(consumer, wanted)
        except KafkaError as error:
            if not error.retriable:
                raise
            return False
        told = 0
        for place, committed in stable.items():
            try:
                await on_committed(place, committed)
            except (KafkaError, TimeoutError) as error:
                logger.warning("what is committed for %s can't be read yet: %r", place, error)
                continue
            offset = OffsetAndMetadata(_UNKNOWN_OFFSET, "")
            if committed is not None:
                offset = OffsetAndMetadata(committed.offset, committed.metadata)
            assignment.state_value(place).update_committed(offset)
            told += 1
        return told == len(wanted)

    coordinator._maybe_refresh_commit_offsets = refresh
