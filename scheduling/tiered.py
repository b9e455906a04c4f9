"""Three tiers with fixed shares and a hard limit on borrowing: interactive 30 %, batch 50 %, best effort 20 %.

Knows the shares. The mechanism is `scheduling.htb`'s: this is a class tree, made of the one that is configured.

Algorithm: P0 and P1 are the interactive tier, P2 is batch, P3 best effort. A tier may borrow what others leave idle,
but no more than `BORROW` of its own rate: beyond that it waits, even on an idle machine.

Source: the tiered schedulers of published LLM platforms (their metric is `scheduler_borrow_ratio{tier_from,tier_to}`).
Why: a burst of one tier can't take the others' latency away, by construction.

Advantage: each tier's worst case can be computed from three numbers. Drawback: not work-conserving, the one policy here
that lets the machine idle while requests wait; shares are guesses about the mix. Limits: as `htb`.
"""

from dataclasses import replace

from scheduling.htb import Htb
from scheduling.htb_build import MakeLeaf
from scheduling.index import Index
from scheduling.priority import PriorityClass
from scheduling.tree import ClassConfig, Rate, TreeConfig

__all__ = ["BORROW", "TIERS", "Tiered", "tiered_tree"]

TIERS = (
    ("interactive", 0.3, (PriorityClass.P0, PriorityClass.P1)),
    ("batch-tier", 0.5, (PriorityClass.P2,)),
    ("best-effort", 0.2, (PriorityClass.P3,)),
)
"""Name, share of the machine, classes."""
BORROW = 0.3
"""Of its own rate: the most a tier runs on others'."""


def tiered_tree(tree: TreeConfig) -> TreeConfig:
    """The tree's priority classes in three tiers. Their tenants and SLOs stay; rates and limits are the tiers'."""
    found = {config.priority: config for config in tree.walk() if config.priority is not None}
    tiers = []
    for name, share, priorities in TIERS:
        members = tuple(
            replace(found[priority], rate=None, ceil=None, strict_limit=None, lendable=1.0, borrow_limit=None)
            for priority in priorities
            if priority in found
        )
        if members:
            tiers.append(ClassConfig(name=name, rate=Rate(share=share), borrow_limit=BORROW, children=members))
    return replace(tree, classes=tuple(tiers))


class Tiered(Htb):
    """Implements `scheduling.discipline.Discipline[HtbGrant]`: `htb` over the three tiers."""

    def __init__(self, index: Index, tree: TreeConfig, make_leaf: MakeLeaf, now: float = 0.0) -> None:
        super().__init__(index, tiered_tree(tree), make_leaf, now)

    def reload(self, config: TreeConfig, now: float) -> None:
        super().reload(tiered_tree(config), now)
