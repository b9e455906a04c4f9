"""A benchmark's child process: load once, run when told to, end when nobody tells any more.

Knows lines on standard input and output. Imports nothing but the standard library, so that a peer in an environment of
its own can use it from the repository's root.

Both sides of a comparison stay loaded and take turns, so that a machine whose speed drifts is the same to both.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["READY", "run_on_request"]

READY = {"ready": True}


def run_on_request(run: Callable[[], dict[str, Any]]) -> None:
    """Say `READY`; for each line that comes, run, and answer with one line of JSON."""
    _say(READY)
    for _line in sys.stdin:
        _say(run())


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
