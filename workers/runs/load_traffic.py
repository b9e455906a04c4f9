"""A trace's request as a record: a prompt of exactly its length, an answer of exactly its length.

Knows bodies, headers and topics. Does not know when a record is sent. A prompt is a list of token ids, for a trace has
no text: it takes the same path as any completion, and no tokeniser is needed on this side. Pieces that the trace says
are equal (Mooncake's hashes) are equal within a play, so prefixes are found in the cache as they would be; another play
has other tokens, or it would find all of the last one's prompts there.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from scheduling.priority import PriorityClass
from topics.catalogue import Catalogue
from topics.codec import dumps
from topics.headers import RequestHeaders
from topics.replies import OutboundRecord
from workers.runs.trace_mix import ArrivingRequest

__all__ = ["load_record", "played"]

_TOKEN_IDS = range(1_000, 9_000)
"""Ordinary tokens in the vocabulary of every model that is likely to be served: the first ids are control tokens."""


def played(requests: Sequence[ArrivingRequest], *, speed: float, length_scale: float) -> tuple[ArrivingRequest, ...]:
    """The stream as it is played: arrivals `speed` times as fast, lengths × `length_scale` (at least one token)."""
    return tuple(
        replace(
            request,
            arrival_s=request.arrival_s / speed,
            prompt_tokens=max(1, round(request.prompt_tokens * length_scale)),
            output_tokens=max(1, round(request.output_tokens * length_scale)),
            prefix_tokens=round(request.prefix_tokens * length_scale),
        )
        for request in requests
    )


def load_record(request: ArrivingRequest, request_id: str, catalogue: Catalogue, play: str) -> OutboundRecord:
    """`play`: a name that no other play has."""
    body = {
        "prompt": _token_ids(request, play),
        "max_tokens": request.output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
    }
    headers = RequestHeaders(request_id=request_id, tenant=request.tenant, flow=request.flow)
    label = PriorityClass(request.priority).label
    return OutboundRecord(catalogue.requests(label), None, request_id.encode(), dumps(body), tuple(headers.encode()))


def _token_ids(request: ArrivingRequest, play: str) -> list[int]:
    ids: list[int] = []
    for prefix_hash in request.prefix_hashes:
        ids += Random(f"{play}/piece/{prefix_hash}").choices(_TOKEN_IDS, k=request.prefix_tokens)
    rest = request.prompt_tokens - len(ids)
    if rest <= 0:
        return ids[: request.prompt_tokens]
    return ids + Random(f"{play}/{request.number}").choices(_TOKEN_IDS, k=rest)
