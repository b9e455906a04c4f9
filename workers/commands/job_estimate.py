"""What a job would take: rows, tokens, cost, and how long at the rate that the workers have shown lately.

Knows estimates and where the rate comes from: the newest replies on the reply topic and the tokens they say. Not a
command itself.

Prompt tokens are not counted but estimated, at four bytes a token, since the client has no tokenizer; output tokens are
what the rows allow at most. The rate is the cost of the newest replies over the time in which they were written, pauses
left out, so it is that of workers which have enough to do and serve nobody else.
"""

from dataclasses import asdict, dataclass
from itertools import pairwise

import orjson

from scheduling.cost import CostModel
from topics.jobs.checked_input import CheckedInput
from topics.partition_reader import PartitionReader
from topics.record import InboundRecord
from workers.commands.job_connection import JobDesk
from workers.commands.job_view import print_json

__all__ = ["JobEstimate", "estimate", "print_estimate"]

_BYTES_A_TOKEN = 4
_NEWEST_REPLIES = 500
"""Of each partition."""
_PAUSE_MS = 5_000
"""Workers that answer nothing for longer are idle, not slow."""


@dataclass(frozen=True, slots=True)
class JobEstimate:
    rows: int
    invalid_rows: int
    prompt_tokens: int
    output_tokens: int
    """At most, of the rows that say how many."""
    unlimited_rows: int
    """Rows that don't."""
    cost: int
    """In the scheduler's units: a prompt token 1, an output token 2."""
    cost_a_second: float | None
    """None: there are no replies to measure by."""
    seconds: float | None


async def estimate(desk: JobDesk, checked: CheckedInput) -> JobEstimate:
    prices = CostModel()
    prompt_tokens = checked.body_bytes // _BYTES_A_TOKEN
    cost = prices.prompt(prompt_tokens) + prices.output(checked.requested_tokens)
    rate = await _measured_rate(desk, prices)
    return JobEstimate(
        rows=checked.rows,
        invalid_rows=len(checked.problems),
        prompt_tokens=prompt_tokens,
        output_tokens=checked.requested_tokens,
        unlimited_rows=checked.unlimited_rows,
        cost=cost,
        cost_a_second=rate,
        seconds=None if rate is None else cost / rate,
    )


def print_estimate(found: JobEstimate, job_id: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"job_id": job_id, **asdict(found)})
        return
    print(f"job            {job_id}")
    print(f"rows           {found.rows:,}" + (f" ({found.invalid_rows:,} invalid)" if found.invalid_rows else ""))
    print(f"prompt tokens  about {found.prompt_tokens:,}")
    open_ended = f", and {found.unlimited_rows:,} rows without max_tokens" if found.unlimited_rows else ""
    print(f"output tokens  at most {found.output_tokens:,}{open_ended}")
    print(f"cost           {found.cost:,} units")
    if found.seconds is None or found.cost_a_second is None:
        print("time           unknown: no replies yet to measure the workers by")
    else:
        print(f"time           about {_duration(found.seconds)} at {found.cost_a_second:,.0f} units/s, the latest rate")


async def _measured_rate(desk: JobDesk, prices: CostModel) -> float | None:
    replies: list[tuple[int, int]] = []
    for partition in range(desk.board.reply_partitions):
        async with PartitionReader(desk.settings, desk.catalogue.replies, partition, read_committed=True) as reader:
            await reader.seek(max(0, await reader.end() - _NEWEST_REPLIES))
            async for records in reader.read_to_end():
                replies += [(record.timestamp_ms, _cost_of(record, prices)) for record in records]
    replies.sort()
    gaps_ms = [later[0] - earlier[0] for earlier, later in pairwise(replies)]
    busy_ms = sum(gap_ms for gap_ms in gaps_ms if gap_ms <= _PAUSE_MS)
    # The first reply's work was done before the measured time began.
    cost = sum(cost for _, cost in replies[1:])
    return None if busy_ms == 0 or cost == 0 else cost / busy_ms * 1000


def _cost_of(record: InboundRecord, prices: CostModel) -> int:
    try:
        usage = orjson.loads(record.value or b"{}")["usage"]
        return prices.prompt(usage["prompt_tokens"]) + prices.output(usage.get("completion_tokens", 0))
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return 0  # an error, or no reply at all


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 120 else f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
