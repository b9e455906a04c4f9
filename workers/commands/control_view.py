"""What commands that give orders share: how long they wait for the workers, what they print. Not a command itself."""

import argparse
import sys
from collections.abc import Sequence

import orjson

__all__ = ["add_wait_argument", "print_applied"]


def add_wait_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wait", type=float, default=10.0, metavar="S", help="how long to wait for the live workers to apply it (10)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON line")


def print_applied(order: str, applied: Sequence[str], late: Sequence[str], *, as_json: bool) -> int:
    """The exit code: 1 if a live worker has not applied the order in time."""
    if as_json:
        sys.stdout.buffer.write(orjson.dumps({"order": order, "applied": applied, "late": late}) + b"\n")
    elif late:
        print(f"{order}: given, but not applied yet by {', '.join(late)}")
    elif applied:
        print(f"{order}: applied by {', '.join(applied)}")
    else:
        print(f"{order}: given; no worker is alive, so it is applied when one starts")
    return 1 if late else 0
