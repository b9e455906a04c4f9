"""A bounded mailbox into the engine thread.

Knows how to put from any thread and how its one reader takes all or waits. Does not know what the messages mean.
"""

import threading
from collections import deque
from typing import Generic, TypeVar

__all__ = ["Mailbox", "MailboxFull"]

T = TypeVar("T")


class MailboxFull(Exception):
    """The reader is `capacity` messages behind: the caller must hold its message and slow its own source down."""


class Mailbox(Generic[T]):
    """Many writers, one reader. Order is the order of `put`."""

    def __init__(self, capacity: int) -> None:
        assert capacity > 0
        self._capacity = capacity
        self._messages: deque[T] = deque()
        self._arrived = threading.Event()

    def put(self, message: T) -> None:
        """Never blocks. Raises `MailboxFull`."""
        if len(self._messages) >= self._capacity:
            raise MailboxFull(f"{self._capacity} messages wait for the engine")
        self._messages.append(message)
        self._arrived.set()

    def wake(self) -> None:
        """Let a waiting reader look up, with or without a message."""
        self._arrived.set()

    def take_all(self) -> list[T]:
        """All messages so far, without blocking. For the reader alone."""
        # Cleared first: a message put after this line sets the event again, so none is slept over.
        self._arrived.clear()
        taken: list[T] = []
        while self._messages:
            taken.append(self._messages.popleft())
        return taken

    def wait(self, timeout_s: float | None) -> bool:
        """Block until something arrived since the last `take_all`, or the time is over. For the reader alone."""
        return self._arrived.wait(timeout_s)

    def __len__(self) -> int:
        return len(self._messages)
