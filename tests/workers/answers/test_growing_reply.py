"""All answers of one request as one: when what of it happened."""

from dataclasses import replace

from tests.workers.engine.engine_rig import Rig
from topics.replies import ReplyContext
from workers.answers.growing_reply import GrowingReply
from workers.answers.reply_body import AnsweredChoice, ReplyBody
from workers.answers.reply_stream import ReplyStream, StreamStart
from workers.engine.timeline import Timeline
from workers.intake.prompt import PreparedRequest, RequestKind
from workers.intake.request import Ending, FinishReason
from workers.intake.sampling import GREEDY

CHOICE = PreparedRequest(
    kind=RequestKind.CHAT,
    model="tiny",
    created_s=1_700_000_000,
    prompt_token_ids=(1, 2),
    sampling=GREEDY,
    max_output_tokens=4,
    eos_token_ids=frozenset(),
    stop=(),
    stream=False,
    include_usage=False,
    choices=2,
    sequences=2,
)


def growing_reply() -> GrowingReply:
    body = ReplyBody("r", CHOICE, lambda _: b"")
    return GrowingReply(Rig().arrive("r"), ReplyContext("r", 1, "d", "r"), body, StreamStart())


def test_the_time_of_a_token_is_the_mean_over_the_tokens_of_all_not_one_span_over_their_sum() -> None:
    reply = growing_reply()
    for sequence in range(2):
        timeline = Timeline(0.0)
        for at_s in (1.0, 1.5, 2.0):
            timeline.token(at_s)
        prepared = replace(CHOICE, sequence=sequence)
        reply.streams[sequence] = ReplyStream("r", prepared, None)
        ending = Ending(FinishReason.LENGTH, timeline, prompt_tokens=2, output_tokens=3)
        reply.end(prepared, AnsweredChoice("", FinishReason.LENGTH, sequence), ending)
    assert reply.ending().timeline.token_s == 0.5


def test_the_turn_of_all_is_that_of_the_first_to_be_admitted() -> None:
    later = Timeline(1.0, staged_s=1.1, chosen_s=4.0, admitted_s=5.0, first_token_s=6.0, last_token_s=6.0, ended_s=6.0)
    first = Timeline(1.0, staged_s=1.2, chosen_s=2.0, admitted_s=3.0, first_token_s=4.0, last_token_s=8.0, ended_s=8.0)
    reply = growing_reply()
    for sequence, timeline in enumerate((later, first)):
        prepared = replace(CHOICE, sequence=sequence)
        reply.streams[sequence] = ReplyStream("r", prepared, None)
        ending = Ending(FinishReason.LENGTH, timeline, prompt_tokens=2, output_tokens=1)
        ended = reply.end(prepared, AnsweredChoice("", FinishReason.LENGTH, sequence), ending)
    assert ended
    whole = reply.ending().timeline
    assert (whole.chosen_s, whole.admitted_s, whole.ended_s) == (2.0, 3.0, 8.0)
