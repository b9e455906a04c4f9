"""Workloads that `bench engine` makes itself: prompts cut out of our own licence text, the same on every machine.

Knows sizes and a seed. Does not know engines. The same tokenizer gives the same workload anywhere. Beside them stand
chats that end where the model ends them, for what depends on what is said.
"""

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from transformers import AutoTokenizer

__all__ = ["CHAT", "MIXES", "Mix", "chat_workload", "make_workload"]

_REQUESTS = 64
_SEED = 20261129
_TEXT = Path(__file__).parent.parent / "LICENSE"


@dataclass(frozen=True, slots=True)
class Mix:
    """The shortest and the longest, in tokens; all lengths between them are as likely."""

    prompt: tuple[int, int]
    output: tuple[int, int]


MIXES = {
    "mixed": Mix(prompt=(32, 320), output=(64, 128)),
    "prefill": Mix(prompt=(1024, 1024), output=(16, 16)),
    "decode": Mix(prompt=(16, 16), output=(256, 256)),
}

CHAT = "chat"
_CHAT_TOKENS = 200
_QUESTIONS = (
    "Explain in two sentences what a water turbine is.",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring.",
    "List five things to pack for a weekend in the mountains.",
    "Summarise: the meeting moved from Monday to Thursday because the room was taken; bring the March figures.",
    "Rewrite politely: send me the report now, I have waited for the report since Monday.",
    "What is the difference between a queue and a stack?",
    "Translate to French: good morning, where is the station?",
    "Give three reasons why tests should not depend on the time of day.",
)


def chat_workload(model_folder: Path) -> dict[str, Any]:
    """As `make_workload`, but for 64 chats, of eight questions in turn, that go on to the model's own end token."""
    tokenizer = AutoTokenizer.from_pretrained(str(model_folder), local_files_only=True)
    requests = []
    for number in range(_REQUESTS):
        chat = [{"role": "user", "content": _QUESTIONS[number % len(_QUESTIONS)]}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=True)[
            "input_ids"
        ]
        requests.append({"prompt_token_ids": list(ids), "max_tokens": _CHAT_TOKENS, "ignore_eos": False})
    return {"requests": requests}


def make_workload(model_folder: Path, mix: Mix) -> dict[str, Any]:
    """`{"requests": [{"prompt_token_ids": […], "max_tokens": n}, …]}`: 64 requests."""
    tokenizer = AutoTokenizer.from_pretrained(str(model_folder), local_files_only=True)
    text: list[int] = tokenizer(_TEXT.read_text(encoding="utf-8"))["input_ids"]
    random = Random(_SEED)
    requests = []
    for _ in range(_REQUESTS):
        length = random.randint(*mix.prompt)
        start = random.randrange(len(text) - length)
        requests.append({"prompt_token_ids": text[start : start + length], "max_tokens": random.randint(*mix.output)})
    return {"requests": requests}
