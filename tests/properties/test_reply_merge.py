"""Whatever is lost, repeated or run again, a reader is told the text once and whole."""

import orjson
from hypothesis import given
from hypothesis import strategies as st

from topics.headers import ReplyEvent
from topics.reply_merge import ReplyMerge
from topics.reply_reader import Reply
from topics.stream_history import StreamHistory

TOKENS = st.lists(st.text(alphabet="abc ", min_size=1, max_size=3), min_size=1, max_size=12)


@st.composite
def runs(draw: st.DrawFn) -> tuple[str, list[Reply]]:
    """A text, and what arrives of it where no marker is read: one run up to a crash, then perhaps another.

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


@st.composite
def attempts(draw: st.DrawFn) -> tuple[str, list[Reply]]:
    """A text, and the records of its stream in the log: attempt after attempt ends, and the next one opens with a
    marker and goes on where the log says, or with a reset and from the beginning. Whoever was thought dead may write
    on."""
    tokens = draw(TOKENS)
    log: list[Reply] = []
    begin = seq = 0
    for attempt in range(1, draw(st.integers(1, 4)) + 1):
        if attempt > 1:
            event = draw(st.sampled_from([ReplyEvent.ATTEMPT, ReplyEvent.ATTEMPT, ReplyEvent.RESET]))
            log.append(Reply(event, "r", attempt, None, (), None, b"{}"))
            if event is ReplyEvent.RESET:
                begin = seq = 0
            late = draw(st.integers(0, 2))
            log.extend(_deltas(tokens, begin, begin + late, seq, attempt - 1))
        end = draw(st.integers(begin, len(tokens)))
        told = _deltas(tokens, begin, end, seq, attempt)
        log.extend(told)
        begin, seq = end, seq + len(told)
    return "".join(tokens), log


def _deltas(tokens: list[str], begin: int, end: int, seq: int, attempt: int) -> list[Reply]:
    return [
        Reply(
            ReplyEvent.DELTA,
            "r",
            attempt,
            seq + place - begin,
            (place,),
            None,
            orjson.dumps({"choices": [{"delta": {"content": tokens[place]}}]}),
        )
        for place in range(begin, min(end, len(tokens)))
    ]


@given(attempts(), st.lists(st.booleans(), max_size=60))
def test_through_all_attempts_each_token_is_told_once_and_the_next_one_finds_what_was_told(
    stream: tuple[str, list[Reply]], looks: list[bool]
) -> None:
    text, log = stream
    merge, history, told = ReplyMerge("r", 0.0), StreamHistory(), ""
    for place, reply in enumerate(log):
        merge.take(reply, 0.0)
        history.take(reply)
        if place < len(looks) and looks[place]:
            told += "".join(delta.text for delta in merge.take_deltas())
            assert text.startswith(told)
            # After a reset the log may tell less than the reader knows.
            assert told.startswith(history.text) or history.text.startswith(told)
    assert not history.broken
    told += "".join(delta.text for delta in merge.take_deltas())
    assert text.startswith(told)
    assert told.startswith(history.text), "a reader has all that the next attempt goes on behind"
