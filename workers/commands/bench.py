"""Measure, side by side with something to compare with, and write JSON.

  headrace bench engine      output tokens/s, TTFT and memory, beside transformers' static generate
  headrace bench urgent      urgent requests over a batch that fills the engine, under fifo and htb
  headrace bench delivery    request → first delta through Kafka, beside a raw aiokafka echo on the same broker
  headrace bench swap        KV blocks copied out and in, beside a plain copy of the same bytes
  headrace bench paging      block accounting beside a decode step, a prefix hit beside its suffix
  headrace bench scheduler   what a queueing discipline costs a request, with up to a million queued
  headrace bench telemetry   the engine with metrics and traces, beside itself without

Each has its own --help. docs/benchmarks.md says how to repeat the published figures.
"""

import argparse
import importlib

__all__ = ["add_arguments", "run"]

_BENCHMARKS = ("engine", "urgent", "delivery", "scheduler", "swap", "paging", "telemetry")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    benchmarks = parser.add_subparsers(dest="benchmark", required=True, metavar="|".join(_BENCHMARKS))
    for name in _BENCHMARKS:
        module = importlib.import_module(f"workers.commands.bench_{name}")
        sub = benchmarks.add_parser(
            name, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.add_arguments(sub)


def run(arguments: argparse.Namespace) -> int:
    code = importlib.import_module(f"workers.commands.bench_{arguments.benchmark}").run(arguments)
    assert isinstance(code, int)
    return code
