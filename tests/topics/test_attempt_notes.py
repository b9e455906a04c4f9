"""What the next owner concludes from the last note of a request."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
        pytest.param(AttemptNote(2, 0, crashes=1, reached=5, tokens=6), False, 0, id="a token further forgives"),
        pytest.param(AttemptNote(3, 0, crashes=2, reached=5, tokens=6, running=False), False, 0, id="and so in order"),
        pytest.param(
            AttemptNote(3, 0, crashes=2, reached=5, running=False), False, 2, id="nobody ran it the last time"
        ),
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
    assert prior.next() == AttemptNote(attempt=3, begun_ms=7, crashes=0, reached=9)


@given(
    dies_at=st.integers(0, 40),
    noted_every=st.integers(1, 10),
    ends=st.lists(st.sampled_from(["dies", "in order", "waits"]), max_size=60),
)
def test_a_request_that_ends_its_worker_at_one_token_is_given_up_and_after_no_more_than_its_crashes(
    dies_at: int, noted_every: int, ends: list[str]
) -> None:
    """`dies_at`: tokens that it has come to when its worker dies of it. Between its crashes owners give it back in
    order, or wait with it; in the end it is run until it is given up."""
    prior, died = PriorAttempts(AttemptNote(attempt=1, begun_ms=0), ended=False), 0
    prior = PriorAttempts(replace(prior.note, running=False), ended=False)
    for end in [*ends, *["dies"] * (3 * (dies_at + 1) + 3)]:
        if prior.crashes >= 3:
            break
        note = prior.next()
        reached = max(note.reached, dies_at - dies_at % noted_every)
        match end:
            case "dies":
                died += 1
                # What a suspect is noted of is its first token further than ever, if it comes to one.
                noted = min(note.reached + 1, dies_at) if note.crashes else reached
                note = replace(note, tokens=noted if noted > note.reached else 0)
            case "in order":
                note = replace(note, tokens=dies_at, running=False)
            case _:
                note = replace(note, running=False)
        prior = PriorAttempts(note, ended=False)
    assert prior.crashes == 3
    assert 3 <= died <= 3 * (dies_at + 1)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60))
def test_a_request_that_gets_on_is_never_given_up_however_often_its_worker_is_killed_meanwhile(
    ends: list[tuple[bool, bool]],
) -> None:
    """Of each attempt: whether its owner ran it, which brings it a token further, and whether it was killed then."""
    prior = PriorAttempts(AttemptNote(attempt=1, begun_ms=0, running=False), ended=False)
    for ran, killed in ends:
        note = prior.next()
        note = replace(note, tokens=note.reached + 1, running=killed) if ran else replace(note, running=False)
        prior = PriorAttempts(note, ended=False)
        assert prior.crashes == 0
