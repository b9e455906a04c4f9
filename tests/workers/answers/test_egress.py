"""Egress: deltas in order, and a final that says the same as its deltas."""

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import orjson
import pytest

from scheduling.priority import PriorityClass
from tests.workers.answers.egress_rig import Scene, end, record_of, text, until
from tests.workers.engine.engine_rig import EOS
from topics.attempt_notes import AttemptNote, PriorAttempts
from topics.errors import RequestError
from topics.record import InboundRecord, RecordId
from topics.replies import OutboundRecord
from topics.usage import UsageRecord
from workers.answers.reply_stream import StreamStart
from workers.answers.usage import UsageWriter
from workers.engine.timeline import Timeline
from workers.intake.embedding import EmbeddingForm
from workers.intake.payload_source import Missing
from workers.intake.prompt import RequestKind
from workers.intake.request import Arrival, Ending, FinishReason, Moved
from workers.intake.sampling import TokenLogprobs
from workers.intake.staging import StageJob
from workers.telemetry.wall_clock import WallClock


async def test_the_final_says_what_the_deltas_said() -> None:
    scene = Scene(delta_interval_ms=0)
    arrival, prepared = scene.request("r")
    running = asyncio.create_task(scene.egress.run())
    for token in (0, 1, 2):
        scene.outbox.tokens(arrival, prepared, [token], None)
        scene.egress.notify()
        await until(lambda: len(scene.deltas.sent) == token + 1)  # noqa: B023 - awaited before the next token
    scene.outbox.ended(arrival, prepared, end(3))
    scene.egress.close()
    await asyncio.wait_for(running, 5)
    (terminal,) = scene.writer.terminals
    assert text(terminal.reply) == "abc" == "".join(map(text, scene.deltas.sent))
    assert [dict(record.headers)["seq"] for record in scene.deltas.sent] == [b"0", b"1", b"2", b"3"]
    assert terminal.after is not None, "the final waits for the last delta"


async def test_the_usage_in_the_last_chunk_and_in_the_final_is_that_of_the_whole_request() -> None:
    scene = Scene(delta_interval_ms=0)
    arrival, prepared = scene.request("r")
    prepared = replace(prepared, include_usage=True)
    scene.outbox.tokens(arrival, prepared, [0], None)
    scene.outbox.ended(arrival, prepared, replace(end(1), cached_tokens=2))
    await scene.run()
    (terminal,) = scene.writer.terminals
    assert terminal.reply.value is not None
    assert scene.deltas.sent[-1].value is not None
    for value in (scene.deltas.sent[-1].value, terminal.reply.value):
        usage = orjson.loads(value)["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 1)
        assert usage["prompt_tokens_details"] == {"cached_tokens": 2}


async def test_a_stream_begins_once_when_the_broker_has_its_first_delta() -> None:
    scene = Scene(delta_interval_ms=0)
    arrival, prepared = scene.request("r")
    scene.deltas.acknowledges = False
    running = asyncio.create_task(scene.egress.run())
    for token in (0, 1):
        scene.outbox.tokens(arrival, prepared, [token], None)
        scene.egress.notify()
        await until(lambda: len(scene.deltas.sent) == token + 1)  # noqa: B023 - awaited before the next token
    assert scene.begun == []
    scene.deltas.acknowledge()
    await until(lambda: scene.begun == ["r"])
    scene.egress.close()
    await asyncio.wait_for(running, 5)
    assert scene.begun == ["r"]


@pytest.mark.parametrize("start", [StreamStart(seq=4), StreamStart(reset=True)])
async def test_a_stream_that_an_earlier_attempt_began_does_not_begin_again(start: StreamStart) -> None:
    scene = Scene()
    arrival, prepared = scene.request("r")
    scene.attempts.attempts.take(arrival)
    scene.attempts.attempts.stage(StageJob(0, arrival))
    scene.attempts.attempts.starts(arrival, start)
    scene.outbox.tokens(arrival, prepared, [0], None)
    scene.outbox.ended(arrival, prepared, end(1))
    await scene.run()
    await asyncio.sleep(0)
    assert scene.deltas.sent
    assert scene.begun == []


async def test_closing_publishes_what_the_engine_left() -> None:
    scene = Scene()
    for number in range(3):
        arrival, prepared = scene.request(f"r{number}")
        # The rig numbers its records from 0 each time: make them three records.
        fields = {name: getattr(arrival, name) for name in arrival.__slots__}
        place = arrival.id._replace(offset=number)
        scene.outbox.ended(Arrival(**fields | {"id": place}), prepared, end(0))
    await scene.run()
    assert len(scene.writer.terminals) == 3


async def test_an_answer_too_large_for_its_topic_has_an_error_to_take_its_place() -> None:
    scene = Scene()
    arrival, prepared = scene.request("r")
    scene.outbox.tokens(arrival, prepared, [0], None)
    scene.outbox.ended(arrival, prepared, end(1))
    await scene.run()
    (terminal,) = scene.writer.terminals
    assert terminal.instead is not None
    failed = terminal.instead(terminal)
    assert dict(failed.reply.headers)["event"] == b"error"
    assert failed.reply.value is not None
    assert orjson.loads(failed.reply.value)["error"]["code"] == "answer_too_large"


async def test_an_answer_that_was_too_large_counts_as_an_error_in_usage_and_telemetry() -> None:
    scene = Scene(usage=UsageWriter("u", WallClock()))
    arrival, prepared = scene.request("r")
    scene.outbox.tokens(arrival, prepared, [0], None)
    scene.outbox.ended(arrival, prepared, Ending(FinishReason.LENGTH, Timeline(arrived_s=0.0, ended_s=1.0), 3, 1))
    await scene.run()
    (terminal,) = scene.writer.terminals
    assert terminal.instead is not None
    failed = terminal.instead(terminal)
    (record,) = failed.beside
    assert UsageRecord.decode(InboundRecord(RecordId("u", 0, 0), 0, record.key, record.value, ())).outcome == (
        "answer_too_large"
    )
    assert failed.publication is not None
    assert failed.publication.ending is not None
    error = failed.publication.ending.error
    assert error is not None
    assert (error.code, failed.publication.ending.output_tokens) == ("answer_too_large", 1)


async def test_a_request_that_moves_is_the_record_itself_and_can_be_answered_instead() -> None:
    scene = Scene()
    arrival, _ = scene.request("r")
    scene.outbox.ended(arrival, None, Ending(Moved(PriorityClass.P3), Timeline(arrived_s=0.0), 0, 0))
    await scene.run()
    scene.give(record_of(arrival))
    (terminal,) = scene.writer.terminals
    assert (terminal.moves, terminal.reply.topic, terminal.reply.value) == (True, "inference.p3", b"{}")
    assert terminal.instead is not None
    failed = terminal.instead(terminal)
    assert (failed.moves, failed.reply.topic, dict(failed.reply.headers)["event"]) == (False, "r", b"error")


async def test_a_stream_that_was_begun_begins_again_in_the_class_that_it_moves_to() -> None:
    """There its `seq` counts from 0 again, and cuts the text at other places."""
    scene = Scene()
    arrival, _ = scene.request("r")
    scene.attempts.journal.left[arrival.id] = PriorAttempts(AttemptNote(2, 0, tokens=5, running=False), ended=False)
    scene.attempts.attempts.take(arrival)
    scene.outbox.ended(arrival, None, Ending(Moved(PriorityClass.P3), Timeline(arrived_s=0.0), 0, 0))
    await scene.run()
    scene.give(record_of(arrival))
    (terminal,), (mark,) = scene.writer.terminals, scene.deltas.sent
    assert (dict(mark.headers)["event"], dict(mark.headers)["attempt"]) == (b"reset", b"3")
    assert terminal.after is not None, "the request waits until the stream is told so"


async def test_a_stream_goes_on_with_the_next_seq_and_tells_nothing_again() -> None:
    scene = Scene(delta_interval_ms=0)
    arrival, prepared = scene.request("r")
    scene.attempts.journal.left[arrival.id] = PriorAttempts(AttemptNote(1, 0), ended=False)
    scene.attempts.attempts.take(arrival)
    scene.attempts.attempts.stage(StageJob(0, arrival))
    scene.attempts.attempts.starts(arrival, StreamStart(seq=4, token_ids=(0, 1), told_characters=2))
    scene.outbox.tokens(arrival, prepared, [0], None)  # which the engine takes up
    scene.outbox.tokens(arrival, prepared, [1], None)
    scene.outbox.tokens(arrival, prepared, [2], None)
    scene.outbox.ended(arrival, prepared, end(3))
    await scene.run()
    (delta,) = scene.deltas.sent
    headers = dict(delta.headers)
    assert (text(delta), headers["seq"], headers["tokens"], headers["attempt"]) == ("c", b"4", b"2", b"2")
    (terminal,) = scene.writer.terminals
    assert text(terminal.reply) == "abc"
    assert [record.topic for record in terminal.beside] == ["progress"]


async def test_an_end_that_was_told_is_not_told_again() -> None:
    scene = Scene()
    arrival, prepared = scene.request("r")
    scene.attempts.attempts.take(arrival)
    scene.attempts.attempts.stage(StageJob(0, arrival))
    start = StreamStart(seq=1, token_ids=(0,), told_characters=1, finished=True)
    scene.attempts.attempts.starts(arrival, start)
    scene.outbox.tokens(arrival, prepared, [0], None)
    scene.outbox.ended(arrival, prepared, end(1))
    await scene.run()
    assert scene.deltas.sent == []
    assert text(scene.writer.terminals[0].reply) == "a"


async def test_a_request_that_is_given_up_is_answered_and_kept_with_its_attempts() -> None:
    scene = Scene()
    arrival, _ = scene.request("r")
    scene.unserved.give_up(arrival, record_of(arrival), PriorAttempts(AttemptNote(3, 0, crashes=2), ended=False))
    (terminal,) = scene.writer.terminals
    assert terminal.reply.value is not None
    error = orjson.loads(terminal.reply.value)["error"]
    assert (error["code"], error["status_code"]) == ("crashed", 500)
    (letter,) = terminal.beside
    assert (letter.topic, letter.key, letter.value) == ("q", b"key", b"{}")
    assert dict(letter.headers)["__dlq.errors.delivery.count"] == b"3"


async def test_what_is_known_of_a_request_whose_record_is_gone_is_kept_all_the_same() -> None:
    scene = Scene()
    arrival, _ = scene.request("r")
    scene.unserved.give_up(arrival, None, PriorAttempts(AttemptNote(3, 0, crashes=2), ended=False))
    (letter,) = scene.writer.terminals[0].beside
    headers = dict(letter.headers)
    assert (headers["request-id"], headers["__dlq.errors.offset"]) == (b"r", b"%d" % arrival.id.offset)


async def test_a_request_that_is_to_move_and_whose_record_is_gone_is_answered_so() -> None:
    scene = Scene()
    arrival, _ = scene.request("r")
    scene.outbox.ended(arrival, None, Ending(Moved(PriorityClass.P3), Timeline(arrived_s=0.0), 0, 0))
    await scene.run()
    assert not scene.writer.terminals
    scene.give(Missing.GONE)
    (terminal,) = scene.writer.terminals
    assert not terminal.moves
    assert orjson.loads(terminal.reply.value or b"")["error"]["code"] == "record_gone"


async def test_a_request_that_is_to_move_and_went_to_another_worker_is_that_ones_to_move() -> None:
    scene = Scene()
    arrival, _ = scene.request("r")
    scene.outbox.ended(arrival, None, Ending(Moved(PriorityClass.P3), Timeline(arrived_s=0.0), 0, 0))
    await scene.run()
    scene.give(Missing.UNWANTED)
    assert not scene.writer.terminals
    assert scene.outbox.undelivered_bytes == 0


async def test_without_room_a_stream_coalesces() -> None:
    scene = Scene(delta_interval_ms=0)
    arrival, prepared = scene.request("r")
    scene.deltas.room.clear()
    running = asyncio.create_task(scene.egress.run())
    scene.outbox.tokens(arrival, prepared, [0], None)
    scene.egress.notify()
    await until(lambda: not scene.outbox._pending)
    scene.outbox.tokens(arrival, prepared, [1], None)
    scene.outbox.tokens(arrival, prepared, [2], None)
    scene.outbox.ended(arrival, prepared, end(3))
    scene.egress.close()
    assert scene.deltas.sent == []
    scene.deltas.room.set()
    await asyncio.wait_for(running, 5)
    assert "".join(map(text, scene.deltas.sent)) == "abc"
    assert len(scene.deltas.sent) <= 2


async def test_log_probabilities_come_with_their_text_and_all_of_them_in_the_final() -> None:
    scene = Scene(delta_interval_ms=0)
    arrival, prepared = scene.request("r")
    prepared = replace(prepared, sampling=replace(prepared.sampling, logprobs=0))
    for token in range(450):
        logprobs = TokenLogprobs(token, -float(token), ())
        scene.outbox.tokens(arrival, prepared, [token], None, logprobs)
    scene.outbox.ended(arrival, prepared, end(450))
    await scene.run()
    (terminal,) = scene.writer.terminals
    chunks = [_logprobs(record) for record in scene.deltas.sent]
    assert max(map(len, chunks)) == 200, "a delta's record has a bound"
    final = _logprobs(terminal.reply)
    assert [each["logprob"] for each in final] == [-float(token) for token in range(450) if token != EOS]
    assert [each for chunk in chunks for each in chunk] == final
    assert "".join(each["token"] for each in final) == text(terminal.reply)


def _logprobs(record: OutboundRecord) -> list[Any]:
    assert record.value is not None
    found = orjson.loads(record.value)["choices"][0]["logprobs"]
    return [] if found is None else list(found["content"])


async def test_words_of_a_stream_do_not_wait_behind_thousands_that_an_order_ends() -> None:
    scene = Scene(delta_interval_ms=0)
    arrival, prepared = scene.request("stream")
    ended = [replace(arrival, id=arrival.id._replace(offset=1 + n)) for n in range(500)]
    cancelled = Ending(RequestError.cancelled(), Timeline(arrived_s=0.0, ended_s=1.0), 0, 0)
    for each in ended:
        scene.outbox.ended(each, None, cancelled)
    running = asyncio.create_task(scene.egress.run())
    scene.egress.notify()
    await until(lambda: len(scene.writer.terminals) > 0)
    scene.outbox.tokens(arrival, prepared, [0], None)
    scene.egress.notify()
    await until(lambda: len(scene.deltas.sent) == 1)
    assert len(scene.writer.terminals) < len(ended)
    scene.egress.close()
    await asyncio.wait_for(running, 5)
    assert [terminal.record for terminal in scene.writer.terminals] == [each.id for each in ended]
    assert all(terminal.in_bulk for terminal in scene.writer.terminals)


class Watched(np.ndarray):
    """A hidden state that counts how many of its kind were read."""

    read = 0

    def __getitem__(self, key: Any) -> Any:
        Watched.read += 1
        return np.asarray(self)[key]


async def test_between_the_vectors_of_one_reply_others_get_their_turn() -> None:
    vectors, scene = 40, Scene()
    arrival, prepared = scene.request("many")
    form = EmbeddingForm(8, base64=False)
    for number in range(vectors):
        one = replace(prepared, kind=RequestKind.EMBEDDING, embedding=form, sequence=number, sequences=vectors)
        state = np.full(16, 1 + number, dtype=np.float32).view(Watched)
        scene.outbox.ended(arrival, one, replace(end(0), reason=FinishReason.STOP, embedding=state))
    running = asyncio.create_task(scene.egress.run())
    scene.egress.notify()
    seen = [Watched.read]
    while not scene.writer.terminals:
        await asyncio.sleep(0)
        seen.append(Watched.read)
    scene.egress.close()
    await asyncio.wait_for(running, 5)
    assert seen[-1] - seen[0] == vectors
    assert max(after - before for before, after in pairwise(seen)) == 1, "several were written in one turn"
    (terminal,) = scene.writer.terminals
    assert [item["index"] for item in orjson.loads(terminal.reply.value or b"")["data"]] == list(range(vectors))
