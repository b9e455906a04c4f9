"""Position embeddings that change with the longest sequence of a batch, and from which length on they do.

Knows transformers' rope configuration. Does not know how the embeddings are computed.
"""

from typing import Any

from transformers import PreTrainedConfig

from workers.runners.errors import UnsupportedModel

__all__ = ["refuse_batch_dependent_positions"]


def refuse_batch_dependent_positions(config: PreTrainedConfig, context_tokens: int) -> None:
    """`dynamic` and `longrope` embeddings change with the longest position of a forward, beyond a first length.

    In a packed step one long sequence would change the others' tokens. Raises `UnsupportedModel`.
    """
    text: Any = config.get_text_config(decoder=True)
    stated = getattr(text, "rope_parameters", None)
    if not stated:
        return
    for rope in [stated, *(part for part in stated.values() if isinstance(part, dict))]:
        kind = rope.get("rope_type")
        first_length = rope.get("original_max_position_embeddings", text.max_position_embeddings)
        if kind in {"dynamic", "longrope"} and context_tokens > first_length:
            raise UnsupportedModel(
                f"{text.model_type} has {kind} position embeddings, which depend on the longest sequence of a "
                f"batch beyond {first_length} tokens: set model.max_context_tokens to {first_length} or less"
            )
