"""A lease lasts somewhat less than a session time-out from the question that the group answered."""

from topics.membership_lease import MembershipLease


def test_a_lease_begins_with_the_question_and_ends_before_the_group_can_give_the_partitions_away() -> None:
    now_s, confirmations = 0.0, []
    lease = MembershipLease(10.0, lambda: confirmations.append(now_s), monotonic_s=lambda: now_s)
    assert not lease.holds, "nobody has confirmed it yet"
    now_s = 4.0
    lease.confirmed(asked_s=3.0)
    assert confirmations == [4.0]
    now_s = 11.9
    assert lease.holds
    lease.confirmed(asked_s=2.0)
    assert lease.holds, "an answer to what was asked before takes nothing back"
    now_s = 12.1
    assert not lease.holds
