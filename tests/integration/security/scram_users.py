"""Making a SCRAM user on a broker (KIP-554, API 51 version 0): aiokafka has no call for it, and a JVM takes seconds."""

import hashlib
import os
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    CompactArray,
    CompactBytes,
    CompactString,
    Int8,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

__all__ = ["make_scram_user"]

_MECHANISMS = {1: "sha256", 2: "sha512"}
_ITERATIONS = 4_096


class _Response(Response):  # type: ignore[misc] # aiokafka is untyped
    API_KEY = 51
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "results",
            CompactArray(
                ("user", CompactString("utf-8")),
                ("error_code", Int16),
                ("error_message", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _Struct(RequestStruct):  # type: ignore[misc] # aiokafka is untyped
    API_KEY = 51
    API_VERSION = 0
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _Response
    SCHEMA = Schema(
        (
            "deletions",
            CompactArray(("name", CompactString("utf-8")), ("mechanism", Int8), ("tags", TaggedFields)),
        ),
        (
            "upsertions",
            CompactArray(
                ("name", CompactString("utf-8")),
                ("mechanism", Int8),
                ("iterations", Int32),
                ("salt", CompactBytes),
                ("salted_password", CompactBytes),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _Request(Request[_Struct]):  # type: ignore[misc] # aiokafka is untyped
    API_KEY = 51

    def __init__(self, upsertions: list[tuple[Any, ...]]) -> None:
        self._upsertions = upsertions

    def build(self, request_struct_class: type[_Struct]) -> _Struct:
        return request_struct_class([], self._upsertions, {})


async def make_scram_user(bootstrap_servers: str, name: str, password: str) -> None:
    """For both mechanisms."""
    client = AIOKafkaClient(bootstrap_servers=bootstrap_servers)
    await client.bootstrap()
    try:
        for mechanism, digest in _MECHANISMS.items():  # a broker takes one of a user in a request
            salt = os.urandom(24)
            salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, _ITERATIONS)
            upsertion: tuple[Any, ...] = (name, mechanism, _ITERATIONS, salt, salted, {})
            answer = await client.send(client.get_random_node(), _Request([upsertion]))
            ((_, code, message, _),) = answer.results
            assert code == 0, f"{name}: {code} {message}"
    finally:
        await client.close()
