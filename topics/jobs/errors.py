"""How work on jobs ends badly: what the user has to correct, and what failed though nothing was wrong with the order.

Knows these two. Each error's own class stands where it is raised.
"""

__all__ = ["JobFailedError", "JobMistakeError"]


class JobMistakeError(Exception):
    """Nothing was done. The message names what is wrong, and the remedy."""


class JobFailedError(Exception):
    """A part may have been done. The message says what is to be done now."""
