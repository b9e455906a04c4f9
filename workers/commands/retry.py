"""Run the rows of an ended job that failed once more. Rows that were invalid at submission stay as they are.

headrace retry JOB --wait --output out.jsonl --errors bad.jsonl
"""

import argparse

from workers.commands.job_rerun import add_rerun_arguments, rerun

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_rerun_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    return rerun(arguments, "retry")
