"""The priority classes.

Knows their order and names. Does not know their shares, SLOs or limits: those are configuration
(`scheduling.tree`).
"""

from enum import IntEnum

__all__ = ["PriorityClass"]


class PriorityClass(IntEnum):
    """A priority class. **P0 is the most urgent**, P3 the least (vLLM's polarity, not SGLang's)."""

    P0 = 0
    P1 = 1
    P2 = 2
    P3 = 3

    @property
    def label(self) -> str:
        """The class as it is written in topics, flags and metrics: `p0` … `p3`."""
        return f"p{int(self)}"

    @classmethod
    def from_label(cls, label: str) -> "PriorityClass":
        """Raises `ValueError` naming the label if it is none of `p0` … `p3`."""
        for member in cls:
            if member.label == label.lower():
                return member
        raise ValueError(f"unknown priority class {label!r}: expected p0, p1, p2 or p3 (p0 is the most urgent)")
