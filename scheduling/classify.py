"""Which service class a request gets: its topic's, or a lower one it asks for.

Knows that a request may step down and never up. Does not know headers or bodies: the caller reads them.
"""

from scheduling.priority import PriorityClass

__all__ = ["ClassRaisedError", "service_class"]


class ClassRaisedError(Exception):
    """The request asks for a more urgent class than its topic gives."""

    def __init__(self, asked: PriorityClass, origin: PriorityClass) -> None:
        super().__init__(
            f"asks for {asked.label}, which is more urgent than its topic's {origin.label}: a request may lower its "
            f"class, never raise it; send it to the {asked.label} topic instead."
        )


def service_class(origin: PriorityClass, *asked: PriorityClass | None) -> PriorityClass:
    """The lowest of the origin class and what is asked for. Raises `ClassRaisedError` at an attempt to rise."""
    lowest = origin
    for wish in asked:
        if wish is None:
            continue
        if wish < origin:
            raise ClassRaisedError(wish, origin)
        lowest = max(lowest, wish)
    return lowest
