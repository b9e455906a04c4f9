"""How a model's folder wants its hidden states made into an embedding, and whether that can be done here.

Knows the files that sentence-transformers writes: `modules.json`, and the folder of its pooling module. Does not know
how hidden states are computed.

Served is what decoders that were trained to embed do (and what any other is asked for, for lack of something better):
the last token's hidden state, which has seen the whole text. Means over all tokens are not: the prefix cache has the KV
of tokens, not their hidden states, and a text that is cut into chunks would have to carry a sum through every
preemption. Vectors are scaled to length 1 in any case, as OpenAI's are.
"""

import json
from pathlib import Path
from typing import Any

from workers.runners.runner import NoEmbeddings

__all__ = ["embedding_size"]

_WITHOUT_EFFECT = frozenset({"Transformer", "Normalize"})
_LAST_TOKEN = "lasttoken"
_MODE = "pooling_mode"


def embedding_size(folder: Path, hidden_size: object) -> int | NoEmbeddings:
    """Numbers of an embedding of the model in this folder, whose configuration states this size."""
    if not isinstance(hidden_size, int):
        return NoEmbeddings("its config.json states no hidden_size")
    modules = folder / "modules.json"
    try:
        refusal = _refusal(folder, json.loads(modules.read_bytes())) if modules.is_file() else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        refusal = f"its modules.json, or a file that it names, can't be read: {type(error).__name__}"
    return hidden_size if refusal is None else NoEmbeddings(refusal)


def _refusal(folder: Path, modules: list[dict[str, Any]]) -> str | None:
    """What its modules ask for and isn't done here."""
    for module in modules:
        kind = str(module["type"]).rpartition(".")[2]
        if kind == "Pooling":
            modes = _modes(json.loads((folder / module["path"] / "config.json").read_bytes()))
            if modes != {_LAST_TOKEN}:
                return (
                    f"it pools by {' and '.join(sorted(modes)) or 'nothing'}, and only the last token's hidden state "
                    f"({_MODE}_{_LAST_TOKEN}) is served"
                )
        elif kind not in _WITHOUT_EFFECT:
            return f"its modules.json asks for a module {kind}, which is not served"
    return None


def _modes(config: dict[str, Any]) -> set[str]:
    """A truth value each, or one name for all."""
    named = config.get(_MODE)
    if named is not None:
        return {named} if isinstance(named, str) else set(named)
    return {name.removeprefix(f"{_MODE}_") for name, chosen in config.items() if name.startswith(_MODE) and chosen}
