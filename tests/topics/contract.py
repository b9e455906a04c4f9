"""Whether a record is one of those that the AsyncAPI document allows on its topic, by jsonschema alone."""

from collections.abc import Iterable
from typing import Any

import orjson
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

_DOCUMENT = "urn:headrace:asyncapi"


class Contract:
    def __init__(self, document: dict[str, Any]) -> None:
        self._channels = {channel["address"]: channel for channel in document["channels"].values()}
        self._messages = document["components"]["messages"]
        resource = Resource.from_contents(document, default_specification=DRAFT202012)
        self._registry: Any = Registry().with_resource(_DOCUMENT, resource)

    def kinds(self, topic: str, headers: Iterable[tuple[str, bytes]], value: bytes | None) -> list[str]:
        """Names of the messages of that topic which the record is: one, if the contract is kept."""
        last = {name: text.decode("utf-8", "surrogateescape") for name, text in headers}
        return [
            name for name in self._channels[topic]["messages"] if self._is(f"#/components/messages/{name}", last, value)
        ]

    def _is(self, place: str, headers: dict[str, str], value: bytes | None) -> bool:
        message = self._messages[place.rpartition("/")[2]]
        if "headers" in message and not self._valid(f"{place}/headers", headers):
            return False
        if "payload" not in message:
            return True
        return value is not None and self._valid(f"{place}/payload", orjson.loads(value))

    def _valid(self, place: str, instance: Any) -> bool:
        validator = Draft202012Validator({"$ref": _DOCUMENT + place}, registry=self._registry)
        return bool(validator.is_valid(instance))
