"""What a request costs, in integer cost units.

Knows token counts and their prices. Does not know time, tenants or buckets. Costs are integers so that the ledger
adds up exactly; a share is a ratio of costs, so the unit itself means nothing.

Linear prices, 1 for an uncached prompt token and 2 for an output token, are those of the virtual token counter
(Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024), which took them from the price lists of the
time. A cached prompt token costs nothing: nobody computes it.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduling.index import Index

__all__ = ["CostModel"]


@dataclass(frozen=True, slots=True)
class CostModel:
    """`prefill` units for a prompt token that is not cached, `decode` units for an output token."""

    prefill: int = 1
    decode: int = 2

    def __post_init__(self) -> None:
        for name, units in (("prefill", self.prefill), ("decode", self.decode)):
            if units < 1:
                raise ValueError(f"cost of a {name} token is {units}: it must be a whole number from 1 up")

    def prompt(self, prompt_tokens: int, cached_tokens: int = 0) -> int:
        return self.prefill * (prompt_tokens - cached_tokens)

    def output(self, output_tokens: int) -> int:
        return self.decode * output_tokens

    def prompt_of(self, index: "Index", row: int) -> int:
        """What the row's prompt costs, as far as it is known now."""
        return self.prefill * (index.prompt_tokens[row] - index.cached_tokens[row])

    def output_of(self, index: "Index", row: int) -> int:
        """What the row's predicted output costs."""
        return self.decode * index.output_tokens[row]
