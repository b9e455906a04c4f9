"""`docs/configuration.md`, out of the models: `python -m workers.configuration.page > docs/configuration.md`.

Knows Markdown and the configuration's models, the class tree's included. Does not know what a setting does: its
description says it.
"""

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from enum import Enum
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from scheduling.tree import ClassConfig, LeafConfig, Slo, TenantsConfig, TreeConfig
from workers.configuration.config import WorkerConfig
from workers.configuration.docstrings import attribute_docstrings

__all__ = ["configuration_page"]

_HEAD = """\
# Configuration

*Made of the models by `python -m workers.configuration.page`; a test compares.*

One YAML file (`--config FILE` or `HEADRACE_CONFIG`), environment variables over it, flags over both; an unknown setting
is an error. `headrace config > headrace.yaml` writes the effective one with these words as comments. The variable of
`engine.max_sequences` is `HEADRACE_ENGINE__MAX_SEQUENCES`; lists are `a,b` there, mappings `a=1,b=2`. A secret can
stand in a variable or a file instead of here.

Beside these, `HEADRACE_CACHE_DIR` is the folder for models, kernels and Kafka (`~/.cache/headrace`), and the standard
`OTEL_*` variables say where traces and metrics are pushed.
"""

_TREE_HEAD = """\
## The class tree

`scheduling.tree` in the file; [scheduling](scheduling.md) has an example and says what goes together. Without it the
shipped tree holds. A rate is `50%` of the parent's, or a number of cost units a second.
"""

_TREE_MODELS: tuple[tuple[str, type], ...] = (
    ("`scheduling.tree`", TreeConfig),
    ("A class: an item of `classes` or `children`", ClassConfig),
    ("`slo` of a class", Slo),
    ("`tenants` of a class", TenantsConfig),
    ("`leaf` of `tenants`", LeafConfig),
)
_MEASURED = frozenset({"capacity_units_s"})
"""Of the tree: not the file's to say."""


def configuration_page() -> str:
    parts = [_HEAD]
    top = [(name, field) for name, field in WorkerConfig.model_fields.items() if _section(field) is None]
    parts.append(_table("The worker", (_row(name, field) for name, field in top)))
    for name, field in WorkerConfig.model_fields.items():
        if (section := _section(field)) is not None:
            parts.append(_table(f"`{name}`", _rows(section, "")))
    parts.append(_TREE_HEAD)
    parts += [_table(title, _tree_rows(model), level=3) for title, model in _TREE_MODELS]
    return "\n".join(parts)


def _section(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _rows(section: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        inner = _section(field)
        if inner is None:
            yield _row(prefix + name, field)
        else:
            yield from _rows(inner, f"{prefix}{name}.")


def _row(name: str, field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True)
    return _cells(name, _plain(default), " ".join((field.description or "").split()))


def _tree_rows(model: Any) -> Iterator[str]:
    meanings = attribute_docstrings(model)
    for field in fields(model):
        if field.name not in _MEASURED:
            yield _cells(field.name, _default(field), meanings.get(field.name, ""))


def _default(field: "Field[Any]") -> str:
    if field.default is MISSING:
        if field.default_factory is MISSING:
            return "needed"
        made = field.default_factory()
        return "see below" if hasattr(made, "__dataclass_fields__") else _plain(made)
    return _plain(field.default)


def _plain(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, Enum):
        value = value.value
    if hasattr(value, "__dataclass_fields__"):
        return "see below"
    if isinstance(value, tuple | frozenset | set):
        value = sorted(value) if isinstance(value, frozenset | set) else list(value)
    if (isinstance(value, dict) and not value) or value == []:
        return "none"
    if isinstance(value, str | int | float | bool | list | dict):
        value = str(value) if isinstance(value, str) else value
        text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000)
        return f"`{text.removesuffix('...' + chr(10)).strip()}`"
    return f"`{value}`"


def _cells(name: str, default: str, meaning: str) -> str:
    return f"| `{name}` | {default} | {meaning.replace('|', chr(92) + '|')} |"


def _table(title: str, rows: Iterator[str], *, level: int = 2) -> str:
    return "\n".join([f"{'#' * level} {title}", "", "| setting | default | meaning |", "|---|---|---|", *rows, ""])


if __name__ == "__main__":
    print(configuration_page(), end="")
