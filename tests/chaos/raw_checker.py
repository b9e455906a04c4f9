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

__all__ = ["Sent", "positions", "problems", "run_again"]

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Sent:
    """A request as it was produced."""

    request_id: str
    topic: str
    partition: int
    offset: int
    stream: bool
    deadly: bool = False
    """It ends the process that runs it."""


async def problems(bootstrap_servers: str, prefix: str, group: str, sent: Sequence[Sent]) -> list[str]:
    deltas = await read_topic(bootstrap_servers, f"{prefix}.deltas")
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
        *_given_up(letters, sent),
        *_not_finals(replies, sent),
        *stream_problems(deltas, replies, sent),
        *_commits({(place.topic, place.partition): each.offset for place, each in committed.items()}, answered, sent),
    ]


async def run_again(bootstrap_servers: str, prefix: str) -> int:
    """Attempts that were not the first, of all that were answered."""
    replies = await read_topic(bootstrap_servers, f"{prefix}.replies", isolation_level="read_committed")
    return sum(int(_header(record, "attempt")) - 1 for record in replies)


async def positions(bootstrap_servers: str, prefix: str) -> int:
    """That a model must compute for all that was answered, if it computes nothing twice: the last token of an answer is
    the input of nothing."""
    replies = await read_topic(bootstrap_servers, f"{prefix}.replies", isolation_level="read_committed")
    usages = [json.loads(record.value)["usage"] for record in replies if _header(record, "event") == "final"]
    return sum(usage["prompt_tokens"] + usage["completion_tokens"] - 1 for usage in usages)


def _terminals(answered: Mapping[str, int], sent: Sequence[Sent]) -> list[str]:
    missing = [each.request_id for each in sent if not answered.get(each.request_id)]
    twice = [request_id for request_id, count in answered.items() if count > 1]
    unknown = answered.keys() - {each.request_id for each in sent}
    told = []
    for what, ids in (("without a terminal reply", missing), ("answered twice", twice), ("never sent", unknown)):
        if ids:
            told.append(f"{len(ids)} requests {what}: {sorted(ids)[:_SHOWN]}")
    return told


def _given_up(letters: Sequence[Any], sent: Sequence[Sent]) -> list[str]:
    """Who ends its workers is dead-lettered, once and after three attempts at least; nobody else is."""
    deadly = {each.request_id for each in sent if each.deadly}
    kept = Counter(_header(record, "request-id") for record in letters)
    told = [f"dead-lettered: {request_id}" for request_id in kept.keys() - deadly]
    told += [f"not dead-lettered, or not once: {each}" for each in deadly if kept[each] != 1]
    for record in letters:
        if int(_header(record, "__dlq.errors.delivery.count") or 0) < 3:
            told.append(f"dead-lettered too soon: {_header(record, 'request-id')}")
    return told[:_SHOWN]


def _not_finals(replies: Sequence[Any], sent: Sequence[Sent]) -> list[str]:
    deadly = {each.request_id for each in sent if each.deadly}
    return [
        f"{_header(record, 'request-id')} was answered with {_header(record, 'event')}: {record.value[:200]!r}"
        for record in replies
        if _header(record, "event") != ("error" if _header(record, "request-id") in deadly else "final")
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
    """Each stream's `seq` runs from 0 without a gap or a repetition, through all attempts, and its text is the final's.

    By the rules that hold for every reader: behind the marker of an attempt what earlier ones say is void, and a reset
    begins again.
    """
    streams: dict[str, list[tuple[int, str, str]]] = defaultdict(list)
    attempts: dict[str, int] = defaultdict(int)
    for record in deltas:
        request_id, event = _header(record, "request-id"), _header(record, "event")
        attempt = int(_header(record, "attempt"))
        if attempt < attempts[request_id]:
            continue
        if event != "delta":
            attempts[request_id] = attempt
        if event == "reset":
            streams[request_id].clear()
        elif event == "delta":
            chunk = json.loads(record.value)
            text = chunk["choices"][0]["text"] if chunk["choices"] else ""
            streams[request_id].append((int(_header(record, "seq")), text, _header(record, "tokens")))
    told = []
    finals = {_header(record, "request-id"): record for record in replies if _header(record, "event") == "final"}
    for each in sent:
        if not each.stream or each.request_id not in finals:
            continue
        stream = streams[each.request_id]
        if [seq for seq, _, _ in stream] != list(range(len(stream))):
            told.append(f"the stream of {each.request_id} repeats or lacks a seq: {[seq for seq, _, _ in stream]}")
        final = json.loads(finals[each.request_id].value)
        if "".join(text for _, text, _ in stream) != final["choices"][0]["text"]:
            told.append(f"the stream of {each.request_id} says something else than its final")
        tokens = sum(len(ids.split(",")) for _, _, ids in stream if ids)
        if tokens != final["usage"]["completion_tokens"]:
            told.append(f"the stream of {each.request_id} has {tokens} tokens, its final another number")
    return told[:_SHOWN]


def _header(record: Any, name: str) -> str:
    value: bytes = dict(record.headers).get(name, b"")
    return value.decode()
