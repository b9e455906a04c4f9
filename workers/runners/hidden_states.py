"""The hidden states behind a transformers model's last norm: what its body gives to its output head.

Knows how transformers divides a model into body and head. Does not know which tokens' states are wanted.

They are taken by a hook that is there only while a forward's are wanted: `output_hidden_states` would keep those of all
layers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from workers.runners.runner import NoEmbeddings

__all__ = ["LastHiddenStates"]


class LastHiddenStates:
    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._body: torch.nn.Module = model.base_model

    @contextmanager
    def kept(self) -> Iterator[list[torch.Tensor]]:
        """Filled by the forward that is run inside: one tensor [1, tokens, hidden]."""
        kept: list[torch.Tensor] = []

        def keep(_body: torch.nn.Module, _arguments: Any, output: Any) -> None:
            kept.append(output[0])

        hook = self._body.register_forward_hook(keep)
        try:
            yield kept
        finally:
            hook.remove()

    def size(self, token_ids: torch.Tensor) -> int | NoEmbeddings:
        """Numbers of a hidden state, found by a forward of `token_ids` [1, tokens]. The model still has its own
        attention."""
        if self._body is self._model:
            return NoEmbeddings(f"transformers does not divide {type(self._model).__name__} into body and head")
        with self.kept() as states, torch.inference_mode():
            self._model(token_ids, use_cache=False)
        if [state.shape[:-1] for state in states] != [token_ids.shape]:
            return NoEmbeddings(f"the body of {type(self._model).__name__} gives no hidden state a token")
        return int(states[0].shape[-1])
