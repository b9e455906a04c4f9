"""Print the effective configuration: defaults, then the YAML file, then HEADRACE_* variables over it.

The output is YAML with every field's meaning as a comment: save it, edit it, give it back with --config.
"""

import argparse
import sys
from collections.abc import Iterator
from typing import Any

import orjson
import yaml
from pydantic import BaseModel

from workers.cli import UsageError
from workers.configuration.config import ConfigError, load_config
from workers.configuration.tree_advice import advice
from workers.configuration.tree_config import parse_tree

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, without the comments")


def run(arguments: argparse.Namespace) -> int:
    try:
        config = load_config()
    except ConfigError as error:
        raise UsageError(str(error)) from error
    if arguments.json:
        sys.stdout.buffer.write(orjson.dumps(config.model_dump(mode="json"), option=orjson.OPT_INDENT_2) + b"\n")
    else:
        print("\n".join(_lines(config, "")))
    if config.scheduling.tree is not None:
        # Of the machine's capacity only shares depend, and no advice does.
        for sentence in advice(parse_tree(config.scheduling.tree, capacity_units_s=1_000.0)):
            print(f"headrace: warning: {sentence}.", file=sys.stderr)
    return 0


def _lines(section: BaseModel, indent: str) -> Iterator[str]:
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield ""
            yield f"{indent}{name}:"
            yield from _lines(value, indent + "  ")
            continue
        meaning = " ".join((field.description or "").split())
        variable = f"HEADRACE_{name.upper()}" if not indent else None
        yield f"{indent}# {meaning}" + (f" ({variable})" if variable else "")
        yield f"{indent}{name}: {_scalar(value, section, name)}"


def _scalar(value: Any, section: BaseModel, name: str) -> str:
    plain = section.model_dump(mode="json", include={name})[name]
    return yaml.safe_dump(plain, default_flow_style=True, width=10_000).removesuffix("\n...\n").strip()
