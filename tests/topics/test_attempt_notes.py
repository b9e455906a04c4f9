"""What the next owner concludes from the last note of a request."""

import pytest

from topics.attempt_notes import AttemptKey, AttemptNote, PriorAttempts

NOTE = AttemptNote(attempt=2, begun_ms=1_700_000_000_000, crashes=1, reached=5, tokens=3)


def test_keys_and_notes_are_read_as_they_were_written() -> None:
    key = AttemptKey("headrace.inference.p0", 3, 12_345)
    assert AttemptKey.decode(key.encode()) == key
    assert AttemptNote.decode(NOTE.encode()) == NOTE


@pytest.mark.parametrize("key", [b"", b"group", b"group/1", b"group/a/1", b"\xff/1/2"])
def test_a_key_of_somebody_else_is_named_so(key: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        AttemptKey.decode(key)


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", NOTE.encode().replace(b"5", b'"5"'), b'{"attempt": 1}'])
def test_a_value_that_is_no_note_is_named_so(value: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        AttemptNote.decode(value)


def test_fields_of_later_releases_are_left_alone() -> None:
    assert AttemptNote.decode(NOTE.encode()[:-1] + b',"later":1}') == NOTE


@pytest.mark.parametrize(
    ("note", "ended", "crashes"),
    [
        pytest.param(AttemptNote(1, 0), False, 1, id="it ran and came nowhere"),
        pytest.param(AttemptNote(1, 0, tokens=1), False, 0, id="it came further than ever"),
        pytest.param(AttemptNote(2, 0, crashes=1, reached=5, tokens=5), False, 2, id="no further than before"),
        pytest.param(AttemptNote(2, 0, crashes=1, reached=5, tokens=6), False, 1, id="a token further"),
        pytest.param(AttemptNote(1, 0, running=False), False, 0, id="given back in order"),
        pytest.param(AttemptNote(1, 0), True, 0, id="it came to its end"),
    ],
)
def test_a_crash_counts_if_it_ran_and_came_no_further_than_ever_before(
    note: AttemptNote, ended: bool, crashes: int
) -> None:
    assert PriorAttempts(note, ended).crashes == crashes


def test_the_next_attempt_knows_how_far_the_best_one_came() -> None:
    prior = PriorAttempts(AttemptNote(attempt=2, begun_ms=7, crashes=1, reached=5, tokens=9), ended=False)
    assert prior.next() == AttemptNote(attempt=3, begun_ms=7, crashes=1, reached=9)
