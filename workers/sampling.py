"""How a request wants its tokens drawn.

Knows the parameters and their neutral values. Does not draw (`workers.sampler`) and does not check what a client
sent (`topics.messages` refuses what is out of range, in the client's words).
"""

from dataclasses import dataclass

__all__ = ["GREEDY", "SamplingParams"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int | None = None
    """None: no limit."""
    seed: int = 0
    """64 bits; the draw at output position i is a function of (seed, i) and nothing else."""

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


GREEDY = SamplingParams(temperature=0.0)
