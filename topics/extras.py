"""Packages that only some commands need, and how to get them.

Knows the extras of pyproject.toml and that Headrace comes as a clone, for no registry has it. Does not know who needs
which.
"""

from typing import Literal

__all__ = ["Extra", "how_to_install"]

Extra = Literal["worker", "batch", "bench"]


def how_to_install(extra: Extra) -> str:
    """The remedy of a message that says what is missing."""
    return f"in a clone of Headrace, `make setup` or `pip install -c constraints.txt '.[{extra}]'`"
