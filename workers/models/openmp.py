"""How long a thread of a parallel region spins before it sleeps: said to OpenMP before torch loads it.

Knows the runtime's environment variables. Does not know what is computed.

The threads of a forward meet after every product. GCC's OpenMP spins there for milliseconds by default, which is right
for a program that has the cores to itself. A worker has not: ingress, staging and egress run beside the step, and often
other programs. A thread that spins while the one it waits for has no core burns the very time that the other one needs.
Without any spinning an idle machine pays a system call at each meeting. The number was chosen on a busy machine; on an
idle one it has not been measured.
"""

import os
from collections.abc import MutableMapping

__all__ = ["bound_spinning"]

_TURNS = 2000
"""Some tens of microseconds: longer than a balanced meeting takes, much shorter than a time slice."""


def bound_spinning(environment: MutableMapping[str, str] = os.environ) -> None:
    """Call before torch is imported; child processes inherit it. What the user has set stays."""
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", str(_TURNS))
