"""A request may step down, never up."""

import pytest

from scheduling.classify import ClassRaisedError, service_class
from scheduling.priority import PriorityClass

P0, P1, P2, P3 = PriorityClass


def test_without_a_wish_the_topic_decides() -> None:
    assert service_class(P1, None, None) is P1


def test_the_lowest_wish_wins() -> None:
    assert service_class(P1, P2, P3) is P3


def test_an_equal_wish_changes_nothing() -> None:
    assert service_class(P2, P2) is P2


def test_a_wish_to_rise_is_refused_and_says_where_to_go() -> None:
    with pytest.raises(ClassRaisedError, match=r"asks for p0, which is more urgent than its topic's p2.*p0 topic"):
        service_class(P2, P0)


def test_labels_read_back() -> None:
    assert [PriorityClass.from_label(member.label) for member in PriorityClass] == list(PriorityClass)
    with pytest.raises(ValueError, match="p0 is the most urgent"):
        PriorityClass.from_label("p4")
