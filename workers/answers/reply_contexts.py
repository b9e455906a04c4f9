"""Where the replies to a request go, and what they all carry.

Knows our own topics, a request's headers and which attempt it is. Does not know what replies say
(`workers.answers.egress`, `workers.answers.unserved`).
"""

from collections.abc import Callable

from topics.headers import ReplyAddress
from topics.replies import ReplyContext
from workers.answers.terminal_writer import ReplyTopics
from workers.intake.request import Arrival

__all__ = ["ReplyContexts"]


class ReplyContexts:
    def __init__(self, topics: ReplyTopics, attempt_of: Callable[[Arrival], int]) -> None:
        self._topics = topics
        self._attempt_of = attempt_of

    def of(self, arrival: Arrival) -> ReplyContext:
        """Of all replies to this attempt."""
        headers = arrival.headers
        return ReplyContext(
            request_id=headers.request_id,
            attempt=self._attempt_of(arrival),
            delta_topic=self._topics.deltas,
            reply_topic=headers.reply_topic or self._topics.replies,
            reply_partition=headers.reply_partition,
            correlation_id=headers.correlation_id,
            job_id=headers.job_id,
            custom_id=headers.custom_id,
            traceparent=headers.traceparent,
            tracestate=headers.tracestate,
        )

    def of_refused(self, address: ReplyAddress) -> ReplyContext:
        """Of the one reply to a record that became no request."""
        return ReplyContext(
            request_id=address.request_id,
            attempt=1,
            delta_topic=self._topics.deltas,
            reply_topic=address.topic or self._topics.replies,
            reply_partition=address.partition,
            correlation_id=address.correlation_id,
        )
