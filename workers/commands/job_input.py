"""The input of a job on the command line: how a table becomes rows, and the check with its bar.

Not a command itself.
"""

import argparse
import asyncio
from typing import Any

from rich.progress import Progress

from topics.jobs.checked_input import CheckedInput, check_input
from topics.jobs.input_file import InputFile, RowTemplate
from workers.cli import UsageError

__all__ = ["add_table_arguments", "checked_input", "row_template"]


def add_table_arguments(parser: argparse.ArgumentParser) -> None:
    table = parser.add_argument_group("CSV and Parquet")
    table.add_argument("--prompt-template", metavar="TEXT", help="the user's message, {column} for a column's value")
    table.add_argument("--system", metavar="TEXT", help="a system message before it, with {column} too")
    table.add_argument("--model", help="the model's name; the worker's own where absent")
    table.add_argument("--max-tokens", type=int, help="longest answer")
    table.add_argument("--temperature", type=float, help="0 is greedy (1)")


def row_template(arguments: argparse.Namespace) -> RowTemplate | None:
    names = ("model", "max_tokens", "temperature")
    fields: dict[str, Any] = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    if arguments.prompt_template is None:
        if fields or arguments.system is not None:
            raise UsageError("--system, --model, --max-tokens and --temperature go with --prompt-template")
        return None
    return RowTemplate(arguments.prompt_template, arguments.system, fields)


async def checked_input(file: InputFile, bars: Progress) -> CheckedInput:
    bar = bars.add_task("checking", total=None)
    checked = await asyncio.to_thread(check_input, file, lambda rows: bars.update(bar, completed=rows))
    bars.update(bar, total=checked.rows, completed=checked.rows)
    return checked
