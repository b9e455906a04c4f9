"""Which tokens' log probabilities are shown, and when: never before their text."""

from collections.abc import Sequence

from tests.workers.engine.engine_rig import Rig
from workers.answers.answer_logprobs import AnswerLogprobs, ShownToken
from workers.intake.sampling import TokenLogprobs

END = 26


class SlowLetters:
    """A letter a token; token 0 is half a character and shows with the next one."""

    def __init__(self) -> None:
        self._half = False

    def feed(self, token_ids: Sequence[int]) -> str:
        (token,) = token_ids
        before, self._half = self._half, token == 0
        return "" if token == 0 else "½" * before + chr(96 + token)

    def flush(self) -> str:
        return "�" if self._half else ""


def answer(*token_ids: int) -> AnswerLogprobs:
    growing = AnswerLogprobs(SlowLetters(), {END})
    growing.take([TokenLogprobs(token, -float(token), ()) for token in token_ids])
    return growing


def ids(shown: Sequence[ShownToken]) -> list[int]:
    return [each.logprobs.token_id for each in shown]


def test_tokens_come_once_each_with_the_text_they_are_in() -> None:
    growing = answer(1, 2, 3)
    assert ids(growing.next(2, 100)) == [1, 2]
    assert ids(growing.next(2, 100)) == []
    assert ids(growing.next(3, 100)) == [3]


def test_half_a_character_waits_for_the_other_half() -> None:
    growing = answer(1, 0)
    assert ids(growing.next(1, 100)) == [1]
    growing.take([TokenLogprobs(2, -1.0, ())])
    shown = growing.next(3, 100)
    assert [(each.text_offset, each.logprobs.token_id) for each in shown] == [(1, 0), (1, 2)]


def test_the_end_token_is_no_text() -> None:
    assert ids(answer(1, END).shown(1)) == [1]


def test_what_a_stop_string_cut_off_is_not_shown() -> None:
    assert ids(answer(1, 2, 3, 4).shown(2)) == [1, 2]


def test_a_delta_takes_no_more_than_it_can_hold() -> None:
    growing = answer(1, 2, 3, 4, 5)
    assert growing.owes(5, 2)
    assert ids(growing.next(5, 2)) == [1, 2]
    assert ids(growing.next(5, 2)) == [3, 4]
    assert not growing.owes(5, 2)
    assert ids(growing.next(5, 2)) == [5]


def test_the_engine_publishes_one_for_each_token_also_after_a_preemption() -> None:
    tight = Rig(num_blocks=64, logprobs=2)
    for number in range(40):
        tight.arrive(f"w{number}", prompt=4, output=2)
    tight.run()
    for number in range(4):
        tight.arrive(f"r{number}", prompt=20, output=60)
    tight.run()
    endings = [tight.endings[f"r{number}"].ending for number in range(4)]
    assert sum(ending.timeline.preemptions for ending in endings if ending is not None) > 0
    for number in range(4):
        given = tight.logprobs_of[f"r{number}"]
        assert [each.token_id for each in given] == tight.published[f"r{number}"]
        # The simulated runner's say the output position.
        assert [each.logprob for each in given] == [-float(position) for position in range(60)]
