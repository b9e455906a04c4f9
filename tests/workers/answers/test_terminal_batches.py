"""Who goes with the next batch of terminal replies, and how large it is."""

from dataclasses import dataclass

from topics.replies import OutboundRecord
from workers.answers.terminal_batches import TerminalBatches


@dataclass(frozen=True)
class Reply:
    name: str
    in_bulk: bool = False
    size: int = 10

    @property
    def records(self) -> tuple[OutboundRecord, ...]:
        return (OutboundRecord("replies", None, b"k", bytes(self.size)),)


def batches(*, answers: int = 0, bulk: int = 0) -> TerminalBatches[Reply]:
    made = TerminalBatches[Reply]()
    for number in range(bulk):
        made.put(Reply(f"bulk{number}", in_bulk=True))
    for number in range(answers):
        made.put(Reply(f"answer{number}"))
    return made


def test_an_answer_goes_before_the_thousands_that_an_order_has_ended() -> None:
    ready = batches(bulk=10_000)
    ready.take()
    ready.put(Reply("answer"))
    assert ready.take()[0].name == "answer"


def test_what_an_order_has_ended_has_a_part_of_each_batch_however_many_answers_wait() -> None:
    ready = batches(answers=10_000, bulk=10_000)
    batch = ready.take()
    ended = [reply for reply in batch if reply.in_bulk]
    assert len(ended) == len(batch) // 4
    assert ended[0].name == "bulk0"


def test_each_goes_once_in_the_order_of_its_kind() -> None:
    ready = batches(answers=700, bulk=700)
    taken: list[Reply] = []
    while batch := ready.take():
        taken += batch
    assert [reply.name for reply in taken if reply.in_bulk] == [f"bulk{number}" for number in range(700)]
    assert [reply.name for reply in taken if not reply.in_bulk] == [f"answer{number}" for number in range(700)]
    assert len(ready) == 0


def test_full_batches_that_are_quick_become_larger_and_slow_ones_smaller_again() -> None:
    ready = batches(bulk=100_000)
    sizes = [len(ready.take())]
    for took_s in [0.01] * 30 + [1.0] * 30:
        ready.delivered(sizes[-1], took_s)
        sizes.append(len(ready.take()))
    assert sizes[:31] == sorted(sizes[:31])
    assert sizes[30:] == sorted(sizes[30:], reverse=True)
    assert (sizes[0], sizes[30], sizes[-1]) == (256, 2_048, 256)


def test_a_batch_that_was_not_full_says_nothing_of_larger_ones() -> None:
    ready = batches(bulk=100_000)
    for _ in range(30):
        ready.delivered(10, 0.001)
    assert len(ready.take()) == 256


def test_a_reply_that_is_too_large_for_any_batch_goes_alone() -> None:
    ready = TerminalBatches[Reply]()
    for name, size in (("small", 10), ("large", 8 * 2**20), ("next", 10)):
        ready.put(Reply(name, size=size))
    assert [[reply.name for reply in ready.take()] for _ in range(3)] == [["small"], ["large"], ["next"]]
