"""What each class is entitled to of a thing that all share: of the KV blocks, and in the same way of sequence slots.

Knows shares and counts. Does not know blocks, requests or why somebody wants more: partitions are accounting, not
memory.

- `reserve`: what a class can always have. As long as it does not use it, others may (elastic borrowing); who has more
  than its reserve is a *borrower*, and gives way when somebody below his reserve wants his own.
- `ceiling`: what a class can have at most, however idle the rest is. A class that holds nothing may pass it with one
  request, or a long one could never run.
- What no reserve names is everybody's. A class without a reserve lives on that and on borrowing alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["DEFAULT_SHARES", "Part", "PartitionError", "Share", "divide"]


class PartitionError(ValueError):
    """Shares that can't all hold. The message carries the sum and what to change."""


@dataclass(frozen=True, slots=True)
class Share:
    """Fractions of the whole."""

    reserve: float = 0.0
    ceiling: float = 1.0


@dataclass(frozen=True, slots=True)
class Part:
    """The same in blocks, or in slots."""

    reserve: int
    ceiling: int


DEFAULT_SHARES: Mapping[int, Share] = {
    # Of the design page, section 1. Urgent requests are short: 40 % of the blocks is far more of them than a class
    # held to half of the machine's rate can fill.
    0: Share(reserve=0.15, ceiling=0.4),
    1: Share(reserve=0.375),
    # Batch and background share what no reserve names (47.5 %).
    2: Share(),
    3: Share(),
}


def divide(what: str, total: int, shares: Mapping[int, Share]) -> dict[int, Part]:
    """`total` of something into parts by class; `what` names it in the messages. Raises `PartitionError`."""
    for owner, share in shares.items():
        for name, value in (("reserve", share.reserve), ("ceiling", share.ceiling)):
            if not 0 <= value <= 1:
                raise PartitionError(f"{name} of p{owner}'s {what} = {value}: give a fraction from 0 to 1")
        if share.ceiling < share.reserve:
            raise PartitionError(
                f"p{owner}'s ceiling of {what} = {share.ceiling:g} is below its reserve = {share.reserve:g}: raise the "
                "first or lower the second"
            )
        if share.ceiling == 0:
            raise PartitionError(f"p{owner}'s ceiling of {what} = 0: the class could never run; raise it")
    reserved = sum(share.reserve for share in shares.values())
    if reserved > 1 + 1e-9:
        terms = " + ".join(f"{share.reserve:g} (p{owner})" for owner, share in sorted(shares.items()))
        raise PartitionError(
            f"the reserves of {what} are {terms} = {reserved:g}, more than the whole: lower them by {reserved - 1:g}"
        )
    return {
        owner: Part(reserve=int(total * share.reserve), ceiling=max(1, int(total * share.ceiling)))
        for owner, share in shares.items()
    }
