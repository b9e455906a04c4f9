"""Show live what the workers do: classes, tenants, requests, KV, and what the time to the first token is spent on.

  headrace top                     # q quits, ? says the keys and what the columns mean
  headrace top --once --json       # one look, for scripts

Workers report once a second on a topic (kafka.topic_prefix + ".reports"), so nothing but a broker must be reachable,
and all workers are there, wherever they run.
"""

import argparse
import asyncio
import contextlib
import curses
import logging
import sys
import time
from dataclasses import asdict
from typing import Any

import orjson

from topics.catalogue import Catalogue
from topics.client import TopicMissingError
from topics.report_reader import ReportReader
from workers.cli import CommandFailedError, UsageError
from workers.commands.connection import add_kafka_arguments, connection, kafka_config
from workers.commands.explained import explained
from workers.telemetry.top_figures import GONE_S, HISTORY_S, ReportBook
from workers.telemetry.top_screen import Choices, Line, screen

__all__ = ["add_arguments", "run"]

_ONCE_S = 3.0
"""So long `--once` listens: a worker that has just started reports in it, twice."""
_REDRAW_S = 1.0
_ONCE_WIDTH, _ONCE_HEIGHT = 100, 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_kafka_arguments(parser)
    parser.add_argument("--once", action="store_true", help="print one look, after three seconds, and end")
    parser.add_argument("--json", action="store_true", help="with --once: print JSON")


def run(arguments: argparse.Namespace) -> int:
    if arguments.json and not arguments.once:
        raise UsageError("--json goes with --once: a live view is for eyes")
    config = kafka_config(arguments)
    catalogue = Catalogue(prefix=config.topic_prefix, group_prefix=config.group_prefix)
    reader = ReportReader(connection(config, "headrace-top"), catalogue.reports, history_s=HISTORY_S)
    with explained():
        try:
            if arguments.once:
                return asyncio.run(_once(reader, catalogue.prefix, as_json=arguments.json))
            if not (sys.stdin.isatty() and sys.stdout.isatty()):
                raise UsageError("headrace top draws on a terminal, and this is none: give --once")
            asyncio.run(_live(reader, catalogue.prefix))
        except TopicMissingError as error:
            raise UsageError(str(error)) from error
    return 0


async def _once(reader: ReportReader, prefix: str, *, as_json: bool) -> int:
    book = ReportBook()
    async with reader:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ONCE_S):
                async for report in reader:
                    book.take(report)
    book.forget_gone(_now_ms())
    figures = book.figures()
    if as_json:
        sys.stdout.buffer.write(orjson.dumps(asdict(figures), default=_plain, option=orjson.OPT_INDENT_2) + b"\n")
    else:
        for choices in (Choices(), Choices(view="requests")):
            lines = screen(figures, choices, prefix=prefix, clock=_clock(), width=_ONCE_WIDTH, height=_ONCE_HEIGHT)
            body = [line.text.rstrip() for line in lines[:-1]]
            print("\n".join(body).rstrip(), end="\n\n")
    if not figures.workers:
        raise CommandFailedError(
            f"no worker reported on {prefix}.reports within the last {GONE_S:g} s: is one running?"
        )
    return 0


def _plain(value: Any) -> Any:
    return value.model_dump()


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# --- live -------------------------------------------------------------------------------------------------------------


async def _live(reader: ReportReader, prefix: str) -> None:
    # A warning in the middle of the screen helps nobody.
    logging.disable(logging.CRITICAL)
    async with reader:
        terminal = _Terminal()
        try:
            await _Live(terminal, reader, prefix).run()
        finally:
            terminal.close()
            logging.disable(logging.NOTSET)


class _Live:
    def __init__(self, terminal: "_Terminal", reader: ReportReader, prefix: str) -> None:
        self._terminal = terminal
        self._reader = reader
        self._prefix = prefix
        self._book = ReportBook()
        self._choices = Choices()
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Until q. Raises what breaks the reader."""
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin.fileno(), self._keys)
        try:
            async with asyncio.TaskGroup() as tasks:
                following = [tasks.create_task(self._follow()), tasks.create_task(self._redraw())]
                await self._over.wait()
                for task in following:
                    task.cancel()
        finally:
            loop.remove_reader(sys.stdin.fileno())

    async def _follow(self) -> None:
        async for report in self._reader:
            self._book.take(report)

    async def _redraw(self) -> None:
        while True:
            self._draw()
            await asyncio.sleep(_REDRAW_S)

    def _keys(self) -> None:
        for key in self._terminal.pressed():
            self._choices = self._choices.after(key)
        if self._choices.quit:
            self._over.set()
        else:
            self._draw()

    def _draw(self) -> None:
        self._book.forget_gone(_now_ms())
        height, width = self._terminal.size()
        lines = screen(
            self._book.figures(), self._choices, prefix=self._prefix, clock=_clock(), width=width, height=height
        )
        self._terminal.draw(lines)


class _Terminal:
    """Curses, without waiting."""

    def __init__(self) -> None:
        self._window = curses.initscr()
        curses.noecho()
        curses.cbreak()
        with contextlib.suppress(curses.error):  # a terminal without
            curses.curs_set(0)
        self._window.nodelay(True)
        self._warning = curses.A_BOLD
        if curses.has_colors():
            curses.start_color()
            curses.use_default_colors()
            curses.init_pair(1, curses.COLOR_RED, -1)
            self._warning = curses.color_pair(1)

    def close(self) -> None:
        curses.nocbreak()
        curses.echo()
        curses.endwin()

    def size(self) -> tuple[int, int]:
        return self._window.getmaxyx()

    def pressed(self) -> list[str]:
        found: list[str] = []
        while True:
            try:
                key = self._window.get_wch()
            except curses.error:
                return found
            if key == curses.KEY_RESIZE:
                self._window.clear()
            elif isinstance(key, str):
                found.append(key)
            elif key == curses.KEY_BACKSPACE:
                found.append("\x7f")

    def draw(self, lines: list[Line]) -> None:
        self._window.erase()
        for row, line in enumerate(lines):
            style = curses.A_REVERSE if line.heading else self._warning if line.warning else curses.A_NORMAL
            # Curses refuses the last cell of the last line, after having drawn it.
            with contextlib.suppress(curses.error):
                self._window.addstr(row, 0, line.text, style)
        self._window.refresh()
