"""What must hold of the two reply topics and the committed offsets, whatever was killed.

Reads raw records by offset with aiokafka alone, and parses them by itself: none of our client, none of our codec.
`problems` says what does not hold, one sentence each.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient

from tests.integration.conftest import read_topic

__all__ = ["Sent", "problems"]

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Sent:
    """A request as it was produced."""

    request_id: str
    topic: str
    partition: int
    offset: int
    stream: bool


async def problems(bootstrap_servers: str, prefix: str, group: str, sent: Sequence[Sent]) -> list[str]:
    replies = await read_topic(bootstrap_servers, f"{prefix}.replies", isolation_level="read_committed")
    letters = await read_topic(bootstrap_servers, f"{prefix}.dlq", isolation_level="read_committed")
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    await admin.start()
    try:
        committed = await admin.list_consumer_group_offsets(group)
    finally:
        await admin.close()
    answered = Counter(_header(record, "request-id") for record in replies)
    return [
        *_terminals(answered, sent),
        *(f"dead-lettered: {record.key!r}" for record in letters[:_SHOWN]),
        *_not_finals(replies),
        *_commits({(place.topic, place.partition): each.offset for place, each in committed.items()}, answered, sent),
    ]


def _terminals(answered: Mapping[str, int], sent: Sequence[Sent]) -> list[str]:
    missing = [each.request_id for each in sent if not answered.get(each.request_id)]
    twice = [request_id for request_id, count in answered.items() if count > 1]
    unknown = answered.keys() - {each.request_id for each in sent}
    told = []
    for what, ids in (("without a terminal reply", missing), ("answered twice", twice), ("never sent", unknown)):
        if ids:
            told.append(f"{len(ids)} requests {what}: {sorted(ids)[:_SHOWN]}")
    return told


def _not_finals(replies: Sequence[Any]) -> list[str]:
    return [
        f"{_header(record, 'request-id')} was answered with {_header(record, 'event')}: {record.value[:200]!r}"
        for record in replies
        if _header(record, "event") != "final"
    ][:_SHOWN]


def _commits(committed: Mapping[tuple[str, int], int], answered: Mapping[str, int], sent: Sequence[Sent]) -> list[str]:
    """No commit is beyond a record that has no terminal reply, and in the end all are committed."""
    beyond: dict[str, list[str]] = defaultdict(list)
    for each in sent:
        base = committed.get((each.topic, each.partition), 0)
        if each.offset < base and not answered.get(each.request_id):
            beyond["lies beyond a record without an answer"].append(f"{each.partition}-{each.offset} < {base}")
        elif each.offset >= base and answered.get(each.request_id):
            beyond["is behind the end"].append(f"{each.partition}-{each.offset} ≥ {base}")
    return [f"a commit {what}: {places[:_SHOWN]}" for what, places in beyond.items()]


def stream_problems(deltas: Sequence[Any], replies: Sequence[Any], sent: Sequence[Sent]) -> list[str]:
    """Each stream's `seq` runs from 0 without a gap or a repetition, and its text is the final's."""
    pieces: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for record in deltas:
        if _header(record, "event") == "delta":
            chunk = json.loads(record.value)
            text = chunk["choices"][0]["text"] if chunk["choices"] else ""
            pieces[_header(record, "request-id")].append((int(_header(record, "seq")), text))
    told = []
    finals = {_header(record, "request-id"): record for record in replies}
    for each in sent:
        if not each.stream or each.request_id not in finals:
            continue
        stream = pieces[each.request_id]
        if [seq for seq, _ in stream] != list(range(len(stream))):
            told.append(f"{each.request_id}: seq {[seq for seq, _ in stream]}")
        final = json.loads(finals[each.request_id].value)["choices"][0]["text"]
        if "".join(text for _, text in stream) != final:
            told.append(f"{each.request_id}: its deltas say something else than its final")
    return told[:_SHOWN]


def _header(record: Any, name: str) -> str:
    value: bytes = dict(record.headers).get(name, b"")
    return value.decode()
