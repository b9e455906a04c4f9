"""The angles of the rotary position embedding, and tables of their cosines and sines.

Knows the variants by transformers' own functions. Does not rotate anything.

Tables grow with the positions that are asked for, so a context of 100,000 tokens that nobody uses costs nothing.
(RoPE: Su et al. 2021.)
"""

from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

__all__ = ["RotaryTable", "inverse_frequencies"]

_FIRST_POSITIONS = 1024


def inverse_frequencies(config: PreTrainedConfig, head_dim: int) -> tuple[torch.Tensor, float]:
    """[head_dim ÷ 2] radians a position, and a factor of the cosines and sines."""
    own: Any = config
    kind = own.rope_parameters["rope_type"]
    if kind == "default":
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        return 1.0 / (own.rope_parameters["rope_theta"] ** exponents), 1.0
    frequencies, factor = ROPE_INIT_FUNCTIONS[kind](own, torch.device("cpu"))
    return frequencies, float(factor)


class RotaryTable:
    def __init__(self, frequencies: torch.Tensor, factor: float, device: torch.device) -> None:
        self._frequencies = frequencies.to(device)
        self._factor = factor
        self.cosine = torch.empty((0, len(frequencies)), device=device)
        """[positions so far, head_dim ÷ 2], float32."""
        self.sine = self.cosine
        self.reach(_FIRST_POSITIONS)

    def reach(self, positions: int) -> None:
        """Make the tables hold at least so many positions."""
        if positions <= len(self.cosine):
            return
        size = 1 << (positions - 1).bit_length()
        angles = torch.arange(size, device=self._frequencies.device, dtype=torch.float32)[:, None] * self._frequencies
        self.cosine = angles.cos() * self._factor
        self.sine = angles.sin() * self._factor
