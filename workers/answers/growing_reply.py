"""All answers of one request on their way out: numbered deltas, and one terminal reply when the last has ended.

Knows the request's sequences, the next `seq`, and which of them have ended. Does not know text
(`workers.answers.reply_stream`) or Kafka. Owned by the event loop.
"""

import asyncio
from collections.abc import Iterable
from math import inf
from typing import Any

from topics.replies import ReplyContext
from workers.answers.reply_body import AnsweredChoice, ReplyBody
from workers.answers.reply_stream import ReplyStream, StreamStart
from workers.engine.timeline import Timeline
from workers.intake.prompt import PreparedRequest
from workers.intake.request import Arrival, Ending

__all__ = ["GrowingReply"]


class GrowingReply:
    def __init__(self, arrival: Arrival, context: ReplyContext, body: ReplyBody, start: StreamStart) -> None:
        self.arrival = arrival
        self.context = context
        self.body = body
        self.begun_before = start.reset or start.seq > 0
        """Its reader has had deltas of an earlier attempt."""
        self.streams: dict[int, ReplyStream] = {}
        """By sequence; those that have begun."""
        self.last_acknowledgement: asyncio.Future[Any] | None = None
        """Of the newest delta: the terminal reply must not overtake it."""
        self.ended_bytes = 0
        """What the ended sequences count in the outbox until the terminal reply is delivered."""
        self._answers: dict[int, AnsweredChoice] = {}
        self._endings: dict[int, Ending] = {}
        self._seq = start.seq

    def next_seq(self) -> int:
        self._seq += 1
        return self._seq - 1

    def end(self, prepared: PreparedRequest, answer: AnsweredChoice, ending: Ending) -> bool:
        """A sequence has its answer. True: it was the last."""
        self._answers[prepared.sequence] = answer
        self._endings[prepared.sequence] = ending
        return len(self._answers) == prepared.sequences

    def answers(self) -> list[AnsweredChoice]:
        """When all have ended, in the order of their index."""
        return [self._answers[sequence] for sequence in sorted(self._answers)]

    def ending(self) -> Ending:
        """When all have ended: of the whole request."""
        if len(self._endings) == 1:
            return next(iter(self._endings.values()))
        endings = [self._endings[sequence] for sequence in sorted(self._endings)]
        # A prompt's tokens count once, however many choices it has.
        prompts = [
            ending for sequence, ending in self._endings.items() if self.streams[sequence].prepared.first_of_prompt
        ]
        return Ending(
            endings[0].reason,
            _together([ending.timeline for ending in endings]),
            prompt_tokens=sum(ending.prompt_tokens for ending in prompts),
            output_tokens=sum(ending.output_tokens for ending in endings),
            cached_tokens=sum(ending.cached_tokens for ending in prompts),
            cost=sum(ending.cost for ending in endings),
        )


def _together(timelines: list[Timeline]) -> Timeline:
    """From the first of everything to the last of everything."""
    first = min(timelines, key=lambda timeline: inf if timeline.admitted_s is None else timeline.admitted_s)
    return Timeline(
        arrived_s=timelines[0].arrived_s,
        staged_s=_first(timeline.staged_s for timeline in timelines),
        admitted_s=_first(timeline.admitted_s for timeline in timelines),
        first_token_s=_first(timeline.first_token_s for timeline in timelines),
        last_token_s=max((time for one in timelines if (time := one.last_token_s) is not None), default=None),
        ended_s=max((time for one in timelines if (time := one.ended_s) is not None), default=None),
        suspensions=[suspension for timeline in timelines for suspension in timeline.suspensions],
        steps=max(timeline.steps for timeline in timelines),
        chosen_s=first.chosen_s,
        dispatch=first.dispatch,
        longest_gap_s=max(timeline.longest_gap_s for timeline in timelines),
        gaps_s=sum(timeline.gaps_s for timeline in timelines),
        gaps=sum(timeline.gaps for timeline in timelines),
    )


def _first(times: Iterable[float | None]) -> float | None:
    return min((time for time in times if time is not None), default=None)
