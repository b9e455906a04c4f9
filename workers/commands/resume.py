"""Run the rows of an ended job that were never run: those that expired or were cancelled.

  headrace resume JOB
  headrace resume JOB --completion-window 48h --wait --output out.jsonl --errors bad.jsonl

A job whose sending was broken off by a crash goes on with `headrace submit`.
"""

import argparse

from workers.commands.job_rerun import add_rerun_arguments, rerun

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_rerun_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    return rerun(arguments, "resume")
