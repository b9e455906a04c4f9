"""The class tree that ships, with the source of each number.

Knows defaults only. What they mean is in `scheduling.tree`.
"""

from scheduling.priority import PriorityClass
from scheduling.tree import ClassConfig, Rate, Slo, TreeConfig

__all__ = ["default_tree"]


def default_tree(capacity_units_s: float = 1000.0, largest_item: int = 8192) -> TreeConfig:
    """Four priority classes below the root.

    Weights 16/8/4/2 (design page, section 1): each class twice the next, so that none drowns; the rates 53/27/13/7 %
    of capacity follow from them.
    """
    return TreeConfig(
        capacity_units_s=capacity_units_s,
        largest_item=largest_item,
        classes=(
            ClassConfig(
                name="realtime",
                priority=PriorityClass.P0,
                weight=16,
                # Half the machine: 50 % and the other classes' 47 % keep all promises. (Cisco's guides for low-latency
                # queueing advise a third of a link for voice; voice doesn't borrow, the rest of our P0 is ordinary.)
                strict_limit=Rate(share=0.5),
                # 300 ms: somewhat under the 450 ms of MLPerf Inference's Llama-2-70B "interactive" scenario, for a
                # pause in conversation is felt from there on. 50 ms a token: 20 tokens/s, faster than anyone reads
                # (that scenario asks for 40 ms).
                slo=Slo(ttft_s=0.3, tpot_s=0.05),
            ),
            ClassConfig(
                name="online",
                priority=PriorityClass.P1,
                weight=8,
                # 2 s: MLPerf Inference's Llama-2-70B "server" scenario. 30 s: API gateways give up about then (29 s
                # is the default of Amazon's).
                # A pause in mid-answer is felt like one before it, so it may be as long.
                slo=Slo(ttft_s=2.0, e2e_s=30.0, gap_s=2.0),
            ),
            ClassConfig(
                name="batch",
                priority=PriorityClass.P2,
                weight=4,
                # 60 s: the default proxy_read_timeout of nginx, after which a caller sees an error.
                slo=Slo(e2e_s=60.0),
            ),
            # No SLO: it takes what others leave, and its weight's 7 % when everybody is busy.
            ClassConfig(name="background", priority=PriorityClass.P3, weight=2),
        ),
    )
