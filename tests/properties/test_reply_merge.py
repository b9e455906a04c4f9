"""Whatever is lost, repeated or run again, a reader is told the text once and whole."""

import orjson
from hypothesis import given
from hypothesis import strategies as st

from topics.headers import ReplyEvent
from topics.reply_merge import ReplyMerge
from topics.reply_reader import Reply

TOKENS = st.lists(st.text(alphabet="abc ", min_size=1, max_size=3), min_size=1, max_size=12)


@st.composite
def runs(draw: st.DrawFn) -> tuple[str, list[Reply]]:
    """A text, and what arrives of it: one run of the request up to a crash, then perhaps another from the start.

    Only the first run's deltas may be lost: a second run whose own first delta is lost looks like the first one's next.
    Nothing but the final could tell, and it does (`AnswerChangedError`).
    """
    tokens = draw(TOKENS)
    arrived: list[Reply] = []
    for attempt in range(draw(st.integers(1, 3))):
        cuts = sorted(draw(st.sets(st.integers(1, len(tokens)), max_size=len(tokens))) | {len(tokens)})
        deltas = [
            Reply(
                ReplyEvent.DELTA,
                "r",
                1,
                seq,
                tuple(range(begin, end)),
                None,
                orjson.dumps({"choices": [{"delta": {"content": "".join(tokens[begin:end])}}]}),
            )
            for seq, (begin, end) in enumerate(zip([0, *cuts[:-1]], cuts, strict=True))
        ]
        until = draw(st.integers(0, len(deltas)))
        for reply in deltas[:until]:
            arrived.extend([reply] * draw(st.sampled_from([1, 1, 1, 1, 2] if attempt else [1, 1, 1, 1, 2, 0])))
    return "".join(tokens), arrived


@given(runs(), st.integers(0, 40), st.lists(st.booleans(), max_size=60))
def test_the_text_is_told_once_and_whole(run: tuple[str, list[Reply]], final_at: int, looks: list[bool]) -> None:
    text, arrived = run
    body = {"choices": [{"message": {"content": text}, "finish_reason": "stop"}], "usage": {}}
    final = Reply(ReplyEvent.FINAL, "r", 1, None, (), None, orjson.dumps(body))
    arrived.insert(min(final_at, len(arrived)), final)

    merge, told = ReplyMerge("r", 0.0), ""
    for place, reply in enumerate(arrived):
        merge.take(reply, 0.0)
        if place < len(looks) and looks[place]:
            told += "".join(delta.text for delta in merge.take_deltas())
            assert text.startswith(told)
    told += "".join(delta.text for delta in merge.take_deltas())
    assert told + "".join(delta.text for delta in merge.rest(merge.answer())) == text
