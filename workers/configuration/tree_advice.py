"""What a class tree is warned of though it can be run with.

Knows trees. Does not know the machine: what a worker measures, nobody knows here, so an ordinary request's time is
taken from its class's objectives.

**Bursts.** While a full machine dispatches nobody, a class saves up what is due to it no further than its burst. One
that holds less than its rate × the time of an ordinary request loses what comes above, and gets less than its share
whenever others' requests are long.
"""

from collections.abc import Iterator

from scheduling.tree import Slo, TreeConfig

__all__ = ["advice"]

_SHIPPED_BURST_S = 10.0
"""Nobody is warned of what he did not choose."""
_ORDINARY_OUTPUT_TOKENS = 256
"""About the mean answer of public chat traces."""


def advice(tree: TreeConfig) -> Iterator[str]:
    """Sentences, each naming the class, the value and the remedy."""
    for config in tree.walk():
        ordinary_s = _ordinary_s(config.slo)
        if ordinary_s is not None and config.burst_s < min(ordinary_s, _SHIPPED_BURST_S):
            yield (
                f"class {config.name}: burst_s = {config.burst_s:g} holds less than its rate for the {ordinary_s:g} s "
                "that an ordinary request takes by its slo: while a full machine starts nobody, the class loses what "
                f"is due to it beyond its burst. Set burst_s to {ordinary_s:g} or more"
            )


def _ordinary_s(slo: Slo) -> float | None:
    """Half of what it may take in all; else first token and 256 further ones. None: it has no such objective."""
    if slo.e2e_s is not None:
        return slo.e2e_s / 2
    if slo.ttft_s is not None and slo.tpot_s is not None:
        return slo.ttft_s + _ORDINARY_OUTPUT_TOKENS * slo.tpot_s
    return None
