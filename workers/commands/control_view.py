"""What commands that give orders share: how long they wait for the workers, what they print. Not a command itself."""

import argparse
import sys

import orjson

from topics.control_log import Notice

__all__ = ["add_wait_argument", "print_applied"]


def add_wait_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wait", type=float, default=10.0, metavar="S", help="how long to wait for the live workers to apply it (10)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON line")


def print_applied(order: str, notice: Notice, *, as_json: bool) -> int:
    """The exit code: 1 if a live worker has not applied the order in time, or can't obey what stands."""
    if as_json:
        told = {"order": order, "applied": notice.applied, "late": notice.late, "problems": notice.problems}
        sys.stdout.buffer.write(orjson.dumps(told) + b"\n")
    elif notice.late:
        print(f"{order}: given, but not applied yet by {', '.join(notice.late)}")
    elif notice.applied:
        print(f"{order}: applied by {', '.join(notice.applied)}")
    else:
        print(f"{order}: given; no worker is alive, so it is applied when one starts")
    if not as_json:
        for worker, problem in notice.problems.items():
            print(f"{worker} can't obey: {problem}")
    return 1 if notice.late or notice.problems else 0
