"""Dead letters: records that nobody could be answered for.

headrace dlq list                  a line each: place, age, origin, why; those that were sent again are marked
headrace dlq show 0-17             one of them, with its headers and its bytes
headrace dlq replay 0-17 0-20      send them again to the topic they came from; each once, however often you ask
headrace dlq replay --all
"""

import argparse
import asyncio
import sys
import time
from typing import Any

import orjson
from aiokafka.errors import KafkaError

from topics.catalogue import Catalogue
from topics.dead_letter_box import DeadLetterBox, Letter, LetterPlace, NoSuchLetterError, TooManyReplayedError
from workers.cli import CommandFailedError, UsageError
from workers.commands.connection import add_kafka_arguments, connection, kafka_config
from workers.commands.explained import explained

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("list", "show", "replay"))
    parser.add_argument("places", nargs="*", metavar="PLACE", help="PARTITION-OFFSET, as `list` prints it")
    add_kafka_arguments(parser)
    parser.add_argument("--all", action="store_true", help="replay: every letter that was not sent again yet")
    parser.add_argument("--json", action="store_true", help="print JSON lines")


def run(arguments: argparse.Namespace) -> int:
    places = [_place(text) for text in arguments.places]
    if arguments.action == "list" and places:
        raise UsageError("dlq list shows all: leave the places out, or use `headrace dlq show`")
    if arguments.action == "show" and len(places) != 1:
        raise UsageError("dlq show takes one place: see `headrace dlq list`")
    if arguments.action == "replay" and bool(places) == arguments.all:
        raise UsageError("dlq replay takes either places or --all")
    with explained(TooManyReplayedError):
        try:
            asyncio.run(_act(arguments, places))
        except NoSuchLetterError as error:
            raise UsageError(f"{error}: see `headrace dlq list`") from error
        except KafkaError as error:
            raise CommandFailedError(f"Kafka says: {error!r}") from error
    return 0


async def _act(arguments: argparse.Namespace, places: list[LetterPlace]) -> None:
    config = kafka_config(arguments)
    catalogue = Catalogue(prefix=config.topic_prefix, group_prefix=config.group_prefix)
    async with DeadLetterBox(connection(config, "headrace-dlq"), catalogue) as box:
        if arguments.action == "replay":
            if arguments.all:
                places = [each.place for each in await box.letters() if each.letter is not None and not each.replayed]
            sent = await box.replay(places) if places else []
            for place in sent:
                _print({"replayed": str(place)}, f"sent again  {place}", arguments.json)
            if not arguments.json:
                print(f"{len(sent)} sent again, {len(places) - len(sent)} had been before", file=sys.stderr)
            return
        letters = await box.letters()
    if arguments.action == "show":
        letters = [letter for letter in letters if letter.place == places[0]]
        if not letters:
            raise NoSuchLetterError(f"nothing stands at {places[0]} of {catalogue.dead_letters}")
    for letter in letters:
        described = _described(letter, whole=arguments.action == "show")
        _print(described, _line(letter) if arguments.action == "list" else _text(described), arguments.json)


def _place(text: str) -> LetterPlace:
    partition, dash, offset = text.partition("-")
    if not (dash and partition.isdecimal() and offset.isdecimal()):
        raise UsageError(f"{text!r} is no place: write PARTITION-OFFSET, as `headrace dlq list` prints it")
    return LetterPlace(int(partition), int(offset))


def _described(letter: Letter, *, whole: bool) -> dict[str, Any]:
    described: dict[str, Any] = {
        "place": str(letter.place),
        "timestamp_ms": letter.timestamp_ms,
        "replayed": letter.replayed,
    }
    if (inner := letter.letter) is None:
        return described | {"message": "not a dead letter: its __dlq.errors headers are missing"}
    described |= {
        "origin": str(inner.origin),
        "group": inner.group,
        "delivery_count": inner.delivery_count,
        "message": inner.message,
    }
    if whole:
        described["key"] = None if inner.key is None else inner.key.decode(errors="backslashreplace")
        described["headers"] = [[name, value.decode(errors="backslashreplace")] for name, value in inner.headers]
        described["value"] = None if inner.value is None else inner.value.decode(errors="backslashreplace")
    return described


def _line(letter: Letter) -> str:
    described = _described(letter, whole=False)
    age_s = max(0, int(time.time() - letter.timestamp_ms / 1000))
    again = "  (sent again)" if letter.replayed else ""
    return f"{described['place']:<10} {age_s:>8} s ago  {described.get('origin', '?')}  {described['message']}{again}"


def _text(described: dict[str, Any]) -> str:
    return "\n".join(f"{name}: {value}" for name, value in described.items())


def _print(document: dict[str, Any], text: str, as_json: bool) -> None:
    if as_json:
        sys.stdout.buffer.write(orjson.dumps(document) + b"\n")
    else:
        print(text)
