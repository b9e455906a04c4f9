"""The bearer token of SASL OAUTHBEARER, from a file that somebody keeps fresh.

Knows the file. Does not know who writes it (a Kubernetes projected token, a sidecar, `curl` in a cron job) or what the
token says. It is read anew for each connection, so a token that is renewed in the file is used from then on. The token
is never logged and never part of an error.
"""

import asyncio
from pathlib import Path

from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError

__all__ = ["TokenFile"]

_LARGEST_BYTES = 64 * 1024


class TokenFile(AbstractTokenProvider):  # type: ignore[misc] # aiokafka is untyped
    def __init__(self, path: Path) -> None:
        self._path = path

    async def token(self) -> str:
        """Raises `KafkaConnectionError`, which is retried: the file may be written right now."""
        try:
            return await asyncio.to_thread(read_token, self._path)
        except (OSError, ValueError) as error:
            raise KafkaConnectionError(f"no token in {self._path}: {error}") from None


def read_token(path: Path) -> str:
    """Raises `OSError`, `ValueError`."""
    with path.open("rb") as file:
        raw = file.read(_LARGEST_BYTES + 1)
    if not raw.strip():
        raise ValueError("the file is empty")
    if len(raw) > _LARGEST_BYTES:
        raise ValueError(f"the file is larger than {_LARGEST_BYTES} bytes")
    try:
        return raw.strip().decode("ascii")
    except UnicodeDecodeError:
        raise ValueError("the file is not ASCII") from None
