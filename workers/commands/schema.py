"""Print the contract: an AsyncAPI 3 document of topics, headers and values.

  headrace schema > asyncapi.yaml
  headrace schema --json
  headrace schema --record chat-completion-request          # one value's JSON Schema, for a validator
  headrace schema --write docs                              # docs/asyncapi.yaml and docs/schemas/*.json

The names are those of the configured topic prefix (kafka.topic_prefix).
"""

import argparse
import importlib.metadata
import sys
from pathlib import Path
from typing import Any

import orjson
import yaml

from topics.asyncapi import asyncapi_document
from topics.catalogue import Catalogue
from topics.schemas import RECORD_VALUES, record_schema
from workers.cli import CommandFailedError, UsageError
from workers.configuration.config import ConfigError, load_config

__all__ = ["add_arguments", "contract_files", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--record", choices=sorted(RECORD_VALUES), metavar="NAME", help=", ".join(sorted(RECORD_VALUES))
    )
    parser.add_argument("--write", type=Path, metavar="DIR", help="write asyncapi.yaml and schemas/*.json there")
    parser.add_argument("--json", action="store_true", help="print JSON instead of YAML")


def run(arguments: argparse.Namespace) -> int:
    try:
        config = load_config().kafka
    except ConfigError as error:
        raise UsageError(str(error)) from error
    catalogue = Catalogue(prefix=config.topic_prefix, group_prefix=config.group_prefix)
    if arguments.write is not None:
        _write(arguments.write, contract_files(catalogue))
    elif arguments.record is not None:
        sys.stdout.buffer.write(_json(record_schema(RECORD_VALUES[arguments.record])))
    elif arguments.json:
        sys.stdout.buffer.write(_json(_document(catalogue)))
    else:
        sys.stdout.buffer.write(_yaml(_document(catalogue)))
    return 0


def contract_files(catalogue: Catalogue) -> dict[str, bytes]:
    """Path below the folder → content."""
    schemas = {f"schemas/{name}.json": _json(record_schema(model)) for name, model in RECORD_VALUES.items()}
    return {"asyncapi.yaml": _yaml(_document(catalogue)), **schemas}


def _document(catalogue: Catalogue) -> dict[str, Any]:
    return asyncapi_document(catalogue, importlib.metadata.version("headrace"))


def _write(folder: Path, files: dict[str, bytes]) -> None:
    try:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    except OSError as error:
        raise CommandFailedError(f"{folder} can't be written: {error.strerror}") from error
    print(f"{folder}: {len(files)} files")


def _json(document: dict[str, Any]) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


class _Plain(yaml.SafeDumper):
    """Without anchors: what two places share is written twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _yaml(document: dict[str, Any]) -> bytes:
    text: str = yaml.dump(document, Dumper=_Plain, sort_keys=False, width=120, allow_unicode=True)
    return text.encode()
