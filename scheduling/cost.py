"""What a request costs, in integer cost units.

Knows token counts and their prices. Does not know time, tenants or buckets. Costs are integers so that the ledger
adds up exactly; a share is a ratio of costs, so the unit itself means nothing.

- *linear*: 1 for an uncached prompt token and 2 for an output token, the prices of the virtual token counter (Sheng et
  al., "Fairness in Serving Large Language Models", OSDI 2024), which took them from the price lists of the time.
- *measured*: prices in the ratio of the engine time that a prompt token and an output token take on this machine, as
  measured at start: a tenant's share is then a share of time.
- *log*: linear prices of log₂(1 + tokens): ten times the tokens cost hardly more. A share is then nearly one of
  requests; it suits a group that pays by the request and has no long prompts to hide.

A cached prompt token costs nothing: nobody computes it.
"""

from dataclasses import dataclass
from enum import Enum
from math import log2
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduling.index import Index

__all__ = ["CostKind", "CostModel"]

_LOG_SCALE = 16
"""An ordinary chat answer then costs about what it costs in linear prices, so quanta mean the same."""
_MEASURED_PREFILL = 4
"""Price of a prompt token, so that integers say the ratio of the two to some per cent."""


class CostKind(Enum):
    LINEAR = "linear"
    LOG = "log"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class CostModel:
    """`prefill` units for a prompt token that is not cached, `decode` units for an output token."""

    prefill: int = 1
    decode: int = 2
    logarithmic: bool = False
    """The prices are for log₂(1 + tokens), in sixteenths."""

    def __post_init__(self) -> None:
        for name, units in (("prefill", self.prefill), ("decode", self.decode)):
            if units < 1:
                raise ValueError(f"cost of a {name} token is {units}: it must be a whole number from 1 up")

    @classmethod
    def measured(cls, prefill_token_s: float, output_token_s: float) -> "CostModel":
        """Seconds of engine time that a prompt token and an output token take in a full step."""
        if not prefill_token_s > 0 or not output_token_s > 0:
            raise ValueError(f"a token takes {prefill_token_s} s and {output_token_s} s: both must be above 0")
        if prefill_token_s <= output_token_s:
            return cls(_MEASURED_PREFILL, round(_MEASURED_PREFILL * output_token_s / prefill_token_s))
        return cls(round(_MEASURED_PREFILL * prefill_token_s / output_token_s), _MEASURED_PREFILL)

    @property
    def cheapest_token(self) -> int:
        """By which quanta that are meant in linear units grow."""
        return min(self.prefill, self.decode)

    def prompt(self, prompt_tokens: int, cached_tokens: int = 0) -> int:
        return self._price(self.prefill, prompt_tokens - cached_tokens)

    def output(self, output_tokens: int) -> int:
        return self._price(self.decode, output_tokens)

    def next_output(self, output_tokens: int) -> int:
        """What the last one of so many costs: the sum over an answer is `output`."""
        if not self.logarithmic:
            return self.decode
        return self.output(output_tokens) - self.output(output_tokens - 1)

    def prompt_of(self, index: "Index", row: int) -> int:
        """What the row's prompt costs, as far as it is known now."""
        return self.prompt(index.prompt_tokens[row], index.cached_tokens[row])

    def output_of(self, index: "Index", row: int) -> int:
        """What the row's predicted output costs."""
        return self.output(index.output_tokens[row])

    def _price(self, units: int, tokens: int) -> int:
        return round(_LOG_SCALE * units * log2(1 + tokens)) if self.logarithmic else units * tokens
