import pytest

from scheduling.ledger import OTHER_TENANTS, Cause, Ledger
from scheduling.priority import PriorityClass

P1, P2 = PriorityClass.P1, PriorityClass.P2


def settled(ledger: Ledger, row: int, tenant: str, prompt: int = 10, output: int = 0, refund: int = 0) -> None:
    ledger.open(row, P1, prompt, prompt + output, None)
    ledger.charge(row, output, Cause.OUTPUT)
    ledger.settle(row, refund, tenant)
    ledger.check_integrity()


def test_an_account_says_what_for() -> None:
    ledger = Ledger()
    ledger.open(7, P1, 100, 150, None)
    ledger.charge(7, 30, Cause.OUTPUT)
    ledger.charge(7, 12, Cause.PREEMPTION)
    ledger.charge(7, -5, Cause.PROMPT)
    ledger.settle(7, 20, "acme")
    (account,) = ledger.statistics().accounts
    assert (account.priority, account.tenant, account.requests) == (P1, "acme", 1)
    assert (account.prompt_cost, account.output_cost, account.preemption_cost) == (95, 30, 12)
    assert (account.refunded_cost, account.cost) == (20, 117)


def test_charges_are_settled_or_open_to_the_unit() -> None:
    ledger = Ledger()
    settled(ledger, 1, "a", 10, 5)
    ledger.open(2, P2, 100, 150, None)
    statistics = ledger.statistics()
    assert (statistics.charged, statistics.settled, statistics.open) == (115, 15, 100)


def test_a_row_is_settled_once() -> None:
    ledger = Ledger()
    settled(ledger, 1, "a")
    with pytest.raises(KeyError):
        ledger.settle(1, 0, "a")


def test_a_row_is_in_flight_once() -> None:
    ledger = Ledger()
    ledger.open(1, P1, 1, 2, None)
    with pytest.raises(AssertionError, match="in flight already"):
        ledger.open(1, P1, 1, 2, None)


def test_no_more_of_a_prompt_is_refunded_than_was_charged() -> None:
    ledger = Ledger()
    ledger.open(1, P1, 10, 20, None)
    with pytest.raises(AssertionError, match="refund"):
        ledger.settle(1, 11, "a")


def test_a_withdrawn_row_costs_nothing_but_what_it_did_to_others() -> None:
    ledger = Ledger()
    ledger.open(1, P1, 10, 20, None)
    ledger.charge(1, 7, Cause.PREEMPTION)
    ledger.withdraw(1, "a")
    ledger.check_integrity()
    statistics = ledger.statistics()
    assert (statistics.charged, statistics.refunded, statistics.settled, statistics.open) == (17, 10, 7, 0)


def test_what_ran_is_not_withdrawn() -> None:
    ledger = Ledger()
    ledger.open(1, P1, 10, 20, None)
    ledger.charge(1, 1, Cause.OUTPUT)
    with pytest.raises(AssertionError, match="as if it never had"):
        ledger.withdraw(1, "a")


def test_accounts_are_bounded_and_nothing_is_lost_with_them() -> None:
    ledger = Ledger(max_accounts=6)
    for number in range(100):
        settled(ledger, number, f"tenant-{number}")
    accounts = ledger.statistics().accounts
    assert len(accounts) <= 6
    (others,) = [account for account in accounts if account.tenant == OTHER_TENANTS]
    assert others.requests == 95
    assert sum(account.cost for account in accounts) == 1000


def test_who_is_active_keeps_its_account() -> None:
    ledger = Ledger(max_accounts=6)
    for number in range(50):
        settled(ledger, number, "steady")
        settled(ledger, 1000 + number, f"tenant-{number}")
    assert {account.tenant: account.requests for account in ledger.statistics().accounts}["steady"] == 50
