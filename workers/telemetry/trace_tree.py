"""A finished trace as a tree for the terminal.

Knows finished spans. Does not know how they were made or exported.
"""

from collections import defaultdict
from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan
from rich.text import Text
from rich.tree import Tree

__all__ = ["trace_tree"]

_SHOWN = (
    "messaging.kafka.offset",
    "headrace.tenant",
    "headrace.wait",
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.output_tokens",
    "gen_ai.response.finish_reasons",
    "error.type",
)


def trace_tree(spans: Sequence[ReadableSpan]) -> Tree:
    """The spans of *one* trace, parents before children, children by start. Times are from the trace's first start.

    A span whose parent is not among them stands at the top.
    """
    assert spans, "a trace has at least one span"
    known = {span.context.span_id for span in spans}
    children: dict[int | None, list[ReadableSpan]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.start_time or 0):
        parent = span.parent.span_id if span.parent is not None and span.parent.span_id in known else None
        children[parent].append(span)
    origin_ns = min(span.start_time or 0 for span in spans)
    root = Tree(f"trace {spans[0].context.trace_id:032x}")
    _grow(root, None, children, origin_ns)
    return root


def _grow(tree: Tree, parent: int | None, children: dict[int | None, list[ReadableSpan]], origin_ns: int) -> None:
    for span in children[parent]:
        _grow(tree.add(_line(span, origin_ns)), span.context.span_id, children, origin_ns)


def _line(span: ReadableSpan, origin_ns: int) -> Text:
    start_ns, end_ns = span.start_time or 0, span.end_time or 0
    line = Text(f"{span.name:<28}", style="bold")
    line.append(f"{(start_ns - origin_ns) / 1e6:>9.1f} ms  +{(end_ns - start_ns) / 1e6:>8.1f} ms", style="cyan")
    for name in _SHOWN:
        value = (span.attributes or {}).get(name)
        if value is not None:
            shown = (
                f"{value:.3f}" if isinstance(value, float) else ",".join(value) if isinstance(value, tuple) else value
            )
            line.append(f"  {name.rsplit('.', 1)[-1]}={shown}", style="dim")
    return line
