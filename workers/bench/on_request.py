"""A benchmark's child process: load once, run when told to, end when nobody tells any more.

Knows lines on standard input and output. Imports nothing but the standard library, so that a peer in an environment of
its own can use it from the repository's root.

Both sides of a comparison stay loaded and take turns, so that a machine whose speed drifts is the same to both. Beside
what a run says of itself stands the processor time it took, all threads together: on a machine that other programs use
too, wall clock measures them as well.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

__all__ = ["READY", "run_on_request"]

READY = {"ready": True}


def run_on_request(run: Callable[[], dict[str, Any]]) -> None:
    """Say `READY`; for each line that comes, run, and answer with one line of JSON."""
    _say(READY)
    for _line in sys.stdin:
        before_s = time.process_time()
        answer = run()
        _say(answer | {"processor_s": time.process_time() - before_s})


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
