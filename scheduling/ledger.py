"""The ledger: what was charged, to whom and why, in exact integers.

Knows entries (one a row in flight) and accounts (one a class and tenant). Does not know buckets, deficits or rates:
those decide who goes next, forget and are clamped; the ledger only adds up. Whatever happens to a request
(preemption, cancellation, a wrong prediction), Σ charged − Σ refunded = Σ settled + Σ open, to the unit.
"""

from collections import OrderedDict
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from scheduling.priority import PriorityClass

__all__ = ["OTHER_TENANTS", "Account", "Cause", "Ledger", "LedgerEntry", "LedgerStatistics"]

OTHER_TENANTS = "(others)"
"""Holds what tenants had whose accounts made room for new ones."""


class Cause(IntEnum):
    """Why something was charged."""

    PROMPT = 0
    """The uncached prompt, at dispatch; and (of either sign) what it turns out to be more or less than was thought."""
    OUTPUT = 1
    """Generated tokens."""
    PREEMPTION = 2
    """Work that a preemption caused, charged to who caused it: tokens computed again, bytes swapped."""


_OUTPUT = Cause.OUTPUT


class LedgerEntry:
    """One row in flight."""

    __slots__ = ("counted", "grant", "output", "outstanding", "preemption", "priority", "prompt")

    def __init__(self, priority: int, prompt: int, predicted: int, grant: Any) -> None:
        self.priority = priority
        self.prompt = prompt
        self.output = 0
        self.preemption = 0
        self.outstanding = predicted - prompt
        """Predicted output that is not charged yet."""
        self.counted = predicted
        """What the discipline has counted for this row so far."""
        self.grant = grant
        """The discipline's own (`scheduling.discipline`)."""

    @property
    def charged(self) -> int:
        return self.prompt + self.output + self.preemption


@dataclass(frozen=True, slots=True)
class Account:
    """Settled costs of one tenant in one class."""

    priority: PriorityClass
    tenant: str
    requests: int
    prompt_cost: int
    output_cost: int
    preemption_cost: int
    refunded_cost: int

    @property
    def cost(self) -> int:
        return self.prompt_cost + self.output_cost + self.preemption_cost - self.refunded_cost


@dataclass(frozen=True, slots=True)
class LedgerStatistics:
    charged: int
    refunded: int
    settled: int
    """Net, over all rows that ended."""
    open: int
    """Net, over all rows in flight."""
    accounts: tuple[Account, ...]


class Ledger:
    """Entries are opened at dispatch and settled or withdrawn once. At most `max_accounts` accounts are kept."""

    def __init__(self, max_accounts: int = 10_000) -> None:
        assert max_accounts > len(PriorityClass), "each class needs an account for others, and somebody one of his own"
        self.entries: dict[int, LedgerEntry] = {}
        """By row. Read only from outside."""
        self.charged = 0
        """In all, refunds not taken off."""
        self._refunded = 0
        self._settled = 0
        self._max_accounts = max_accounts
        self._accounts: OrderedDict[tuple[int, str], list[int]] = OrderedDict()
        """Requests; prompt, output, preemption; refunded."""

    def open(self, row: int, priority: int, prompt: int, predicted: int, grant: Any) -> None:
        """`predicted`: cost of prompt and output. `grant` is handed back with the entry."""
        entries = self.entries
        assert row not in entries, f"row {row} is in flight already"
        entries[row] = LedgerEntry(priority, prompt, predicted, grant)
        self.charged += prompt

    def charge(self, row: int, cost: int, cause: Cause) -> None:
        entry = self.entries[row]
        if cause is _OUTPUT:
            entry.output += cost
        elif cause is Cause.PROMPT:
            entry.prompt += cost
        else:
            entry.preemption += cost
        self.charged += cost

    def settle(self, row: int, refund: int, tenant_name: str) -> LedgerEntry:
        """Close the entry of a row that ended. `refund` is the part of its prompt that nobody computed."""
        entry = self.entries.pop(row)
        assert 0 <= refund <= entry.prompt, f"row {row}: {refund=} of a prompt of {entry.prompt}"
        self._refunded += refund
        self._settled += entry.charged - refund
        account = self._account(entry.priority, tenant_name)
        for number, figure in enumerate((1, entry.prompt, entry.output, entry.preemption, refund)):
            account[number] += figure
        return entry

    def withdraw(self, row: int, tenant_name: str) -> LedgerEntry:
        """Take back an entry of which nothing was computed: refund its prompt, settle what it cost others."""
        entry = self.entries.pop(row)
        assert not entry.output, f"row {row} ran, so it can't be as if it never had"
        self._refunded += entry.prompt
        if entry.preemption:
            self._settled += entry.preemption
            self._account(entry.priority, tenant_name)[3] += entry.preemption
        return entry

    def statistics(self) -> LedgerStatistics:
        return LedgerStatistics(
            charged=self.charged,
            refunded=self._refunded,
            settled=self._settled,
            open=sum(entry.charged for entry in self.entries.values()),
            accounts=tuple(
                Account(PriorityClass(priority), tenant, *figures)
                for (priority, tenant), figures in self._accounts.items()
            ),
        )

    def check_integrity(self) -> None:
        statistics = self.statistics()
        assert statistics.charged - statistics.refunded == statistics.settled + statistics.open, f"{statistics}"
        assert sum(account.cost for account in statistics.accounts) == statistics.settled, "accounts don't add up"
        for row, entry in self.entries.items():
            assert entry.outstanding >= 0, f"row {row}: outstanding is {entry.outstanding}"

    def _account(self, priority: int, tenant_name: str) -> list[int]:
        key = (priority, tenant_name)
        account = self._accounts.get(key)
        if account is not None:
            self._accounts.move_to_end(key)
            return account
        while len(self._accounts) >= self._max_accounts:
            (oldest, _), figures = self._accounts.popitem(last=False)
            others = self._accounts.setdefault((oldest, OTHER_TENANTS), [0] * 5)
            for number, figure in enumerate(figures):
                others[number] += figure
        account = self._accounts[key] = [0] * 5
        return account
