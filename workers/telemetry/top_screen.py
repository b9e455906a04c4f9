"""The screen of `top`: figures and what the user chose become lines of text, keys become choices.

Knows widths, columns and keys. Does not know terminals (`workers.commands.top` draws the lines) or where the figures
come from. Made for 80 × 24; more lines show more tenants or requests.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from topics.worker_reports import RequestReport
from workers.telemetry.top_figures import STAGES, ClassFigures, TenantFigures, TopFigures

__all__ = ["Choices", "Line", "screen"]

_LEAST_WIDTH = 80


@dataclass(frozen=True, slots=True)
class Line:
    text: str
    heading: bool = False
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Choices:
    """What the user chose. A key makes another one."""

    view: str = "tenants"
    """`tenants` or `requests`."""
    sort: int = 0
    """Column of the view."""
    reverse: bool = False
    label: str | None = None
    """Only this class."""
    filter: str = ""
    """Only what has this in its name."""
    typing: bool = False
    """Keys go to the filter."""
    help: bool = False
    quit: bool = False

    def after(self, key: str) -> "Choices":
        """`key`: a character; `\\n`, `\\x1b` and `\\x7f` are enter, escape and backspace."""
        if self.typing:
            return self._typed(key)
        if self.help:
            return replace(self, help=False, quit=key == "q")
        if key in "0123":
            label = f"p{key}"
            return replace(self, label=None if self.label == label else label)
        columns = len(_TENANT_COLUMNS if self.view == "tenants" else _REQUEST_COLUMNS)
        changes: dict[str, dict[str, object]] = {
            "q": {"quit": True},
            "t": {"view": "tenants", "sort": 0, "reverse": False},
            "r": {"view": "requests", "sort": 0, "reverse": False},
            "s": {"sort": (self.sort + 1) % columns},
            "i": {"reverse": not self.reverse},
            "/": {"typing": True, "filter": ""},
            "\x1b": {"filter": "", "label": None},
            "?": {"help": True},
            "h": {"help": True},
        }
        return replace(self, **changes.get(key, {}))  # type: ignore[arg-type]

    def _typed(self, key: str) -> "Choices":
        if key in ("\n", "\r"):
            return replace(self, typing=False)
        if key == "\x1b":
            return replace(self, typing=False, filter="")
        if key in ("\x7f", "\b"):
            return replace(self, filter=self.filter[:-1])
        return replace(self, filter=self.filter + key) if key.isprintable() else self

    def shows(self, label: str, *names: str) -> bool:
        return self.label in (None, label) and any(self.filter in name for name in names)


_HELP = (
    "q quit     t tenants     r requests     s sort by the next column     i invert",
    "0 1 2 3    only that class; again: all",
    "/          only names with what you type; Esc: no filter",
    "",
    "wait oldest  requests not admitted yet; how long the first has waited",
    "run susp kv  hold a slot; were preempted; blocks held",
    "cost/s       dispatched cost a second, over ten seconds; then what is promised",
    "borrow       the part of it that ran on others' idle rate",
    "met          answered within every objective of the class, over a minute",
    "preempt      how often they lost their slot, since the start",
    "TTFT         mean seconds to the first token, over a minute, spent on",
    "  ingress    Kafka, until the worker had read it",
    "  queue      until its turn came and its prompt was tokenised",
    "  slot       until there was room for it: KV blocks, a slot, a place in the step",
    "  prefill    until the first token",
    "  reply      (beside it) from the last token to the terminal reply on the broker",
    "slack        seconds until the first token is due; then the whole answer",
)


def screen(figures: TopFigures, choices: Choices, *, prefix: str, clock: str, width: int, height: int) -> list[Line]:
    """At most `height` lines of at most `width` characters."""
    lines = [_title(figures, prefix, clock, width)]
    if not figures.workers:
        lines += [Line(""), Line("No worker reports here. Is one running?", warning=True)]
    elif choices.help:
        lines += [Line(text) for text in _HELP]
    else:
        lines.append(_engine(figures))
        lines += _classes(figures.classes, choices)
        lines += _split(figures.classes, choices)
        lines.append(Line(""))
        rows = max(0, height - len(lines) - 3)  # beside the heading, what is not shown, and the keys
        if choices.view == "tenants":
            lines += _tenants(figures, choices, rows)
        else:
            lines += _requests(figures, choices, rows)
        lines += [Line("")] * (height - 1 - len(lines))
        lines.append(_bottom(choices))
    return [replace(line, text=line.text[:width]) for line in lines[:height]]


def _title(figures: TopFigures, prefix: str, clock: str, width: int) -> Line:
    workers = f"{figures.workers} worker" + ("" if figures.workers == 1 else "s")
    left = f"headrace top  {prefix}  {workers}  {'+'.join(figures.policies)}  {'+'.join(figures.models)}"
    room = max(_LEAST_WIDTH, width) - len(clock) - 1
    return Line(f"{left[:room]:<{room}} {clock}", heading=True)


def _engine(figures: TopFigures) -> Line:
    used = figures.kv_blocks - figures.kv_free
    swapped = f" {figures.kv_swapped} out" if figures.kv_swapped else ""
    return Line(
        f"{figures.steps_s:.1f} steps/s  busy {figures.busy:.0%}  prefill {figures.prefill_tokens_s:,.0f}  "
        f"decode {figures.decode_tokens_s:,.0f} tok/s  KV {used:,}/{figures.kv_blocks:,} +{figures.kv_cached:,} "
        f"cached{swapped}"
    )


# --- classes ----------------------------------------------------------------------------------------------------------


def _classes(classes: Sequence[ClassFigures], choices: Choices) -> list[Line]:
    heading = "class   wait oldest  run susp      kv   cost/s promised borrow  met preempt"
    return [Line(heading, heading=True)] + [
        Line(
            f"{one.label:<5}{one.waiting:>7,}{_age(one.oldest_s):>7}{one.running:>5}{one.suspended:>5}"
            f"{one.kv_blocks:>8,}{one.units_s:>9,.0f}{_units(one.promised_units_s):>9}{one.borrowed:>7.0%}"
            f"{_part(one.met):>5}{one.preempted:>8,}",
            warning=one.met is not None and one.met < 0.95,
        )
        for one in classes
        if choices.label in (None, one.label)
    ]


def _split(classes: Sequence[ClassFigures], choices: Choices) -> list[Line]:
    headings = "".join(f"{stage:>9}" for stage in STAGES)
    lines = [Line(f"TTFT    requests      mean{headings}", heading=True)]
    for one in classes:
        if choices.label in (None, one.label):
            split = one.ttft_split_s
            mean = sum(seconds for stage, seconds in split.items() if stage != "reply")
            cells = "".join(f"{split[stage]:>9.3f}" if split else f"{'–':>9}" for stage in STAGES)
            lines.append(Line(f"{one.label:<6}{one.ttft_requests:>10,}{f'{mean:.3f}' if split else '–':>10}{cells}"))
    return lines


# --- tenants and requests ---------------------------------------------------------------------------------------------

_TenantKey = Callable[[TenantFigures], tuple[float, str]]
_TENANT_COLUMNS: Sequence[tuple[str, _TenantKey]] = (
    ("tokens/s", lambda one: (-one.tokens_s, one.tenant)),
    ("wait", lambda one: (-one.waiting, one.tenant)),
    ("run", lambda one: (-one.running, one.tenant)),
    ("answered", lambda one: (-one.answered, one.tenant)),
    ("tenant", lambda one: (0.0, one.tenant)),
)

_RequestKey = Callable[[RequestReport], tuple[float, str]]
_REQUEST_COLUMNS: Sequence[tuple[str, _RequestKey]] = (
    ("slack", lambda one: (inf if one.slack_s is None else one.slack_s, one.request_id)),
    ("age", lambda one: (-one.age_s, one.request_id)),
    ("tokens", lambda one: (-one.output_tokens, one.request_id)),
    ("preempt", lambda one: (-one.preemptions, one.request_id)),
    ("tenant", lambda one: (0.0, one.tenant)),
)


def _tenants(figures: TopFigures, choices: Choices, rows: int) -> list[Line]:
    _, key = _TENANT_COLUMNS[choices.sort]
    shown = [one for one in figures.tenants if choices.shows(one.label, one.tenant)]
    shown.sort(key=key, reverse=choices.reverse)
    total = sum(one.tokens_s for one in figures.tenants)
    lines = [Line(f"{'tenant':<30}class    wait   run  tokens/s   share  answered", heading=True)]
    for one in shown[:rows]:
        share = one.tokens_s / total if total else 0.0
        lines.append(
            Line(
                f"{_cut(one.tenant, 29):<30}{one.label:<5}{one.waiting:>8,}{one.running:>6}{one.tokens_s:>10,.1f}"
                f"{share:>8.0%}{one.answered:>10,}"
            )
        )
    return [*lines, *_more(len(shown) - rows, figures.more_tenants)]


def _requests(figures: TopFigures, choices: Choices, rows: int) -> list[Line]:
    _, key = _REQUEST_COLUMNS[choices.sort]
    shown = [one for one in figures.requests if choices.shows(one.label, one.tenant, one.request_id)]
    shown.sort(key=key, reverse=choices.reverse)
    heading = f"{'request':<19}class {'tenant':<12}{'state':<10}  age  prompt    out  slack   pre"
    lines = [Line(heading, heading=True)]
    for one in shown[:rows]:
        slack = "–" if one.slack_s is None else f"{one.slack_s:.1f}"
        lines.append(
            Line(
                f"{_cut(one.request_id, 18):<19}{one.label:<6}{_cut(one.tenant, 11):<12}{one.state:<10}"
                f"{_age(one.age_s):>5}{one.prompt_tokens:>8,}{one.output_tokens:>7,}{slack:>7}{one.preemptions:>6}",
                warning=one.slack_s is not None and one.slack_s < 0,
            )
        )
    return [*lines, *_more(len(shown) - rows, figures.more_requests)]


def _more(hidden: int, untold: int) -> list[Line]:
    count = max(0, hidden) + untold
    return [Line(f"… {count:,} more")] if count else []


def _bottom(choices: Choices) -> Line:
    if choices.typing:
        return Line(f"filter: {choices.filter}_   Enter: keep   Esc: none")
    columns = _TENANT_COLUMNS if choices.view == "tenants" else _REQUEST_COLUMNS
    order = f"by {columns[choices.sort][0]}" + (", inverted" if choices.reverse else "")
    only = f", only {choices.label}" if choices.label else ""
    named = f", named *{choices.filter}*" if choices.filter else ""
    return Line(f"q quit t tenants r requests s sort / filter ? help   {order}{only}{named}")


# --- cells ------------------------------------------------------------------------------------------------------------


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 100:
        return f"{seconds:.1f}s"
    return f"{seconds / 60:.0f}m" if seconds < 6_000 else f"{seconds / 3_600:.0f}h"


def _units(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _part(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _cut(text: str, width: int) -> str:
    plain = "".join(character if character.isprintable() else "?" for character in text)
    return plain if len(plain) <= width else plain[: width - 1] + "…"
