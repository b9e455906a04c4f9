"""A class tree from the configuration file.

Knows the file's spelling: classes by label, rates as `50%` of the parent's or as cost units a second, and names that
nobody knows. What the values mean, and whether promises add up, is `scheduling.tree`'s matter.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pydantic import TypeAdapter, ValidationError

from scheduling.priority import PriorityClass
from scheduling.tree import ClassConfig, LeafConfig, Slo, TenantsConfig, TreeConfig, TreeError

__all__ = ["parse_tree"]

_RATES = ("rate", "ceil", "strict_limit")
_NESTED: dict[str, type] = {"slo": Slo, "tenants": TenantsConfig, "leaf": LeafConfig}
_ADAPTER = TypeAdapter(TreeConfig)


def parse_tree(document: Mapping[str, Any], capacity_units_s: float) -> TreeConfig:
    """`document`: what stands below `scheduling.tree`. The capacity is the machine's, and not the file's to say.

    Raises `TreeError` naming the place, the value and the remedy.
    """
    if "capacity_units_s" in document:
        raise TreeError("tree.capacity_units_s: it is measured; leave it out")
    prepared = _prepare(TreeConfig, document, "tree")
    try:
        return _ADAPTER.validate_python({**prepared, "capacity_units_s": capacity_units_s})
    except ValidationError as error:
        raise TreeError("; ".join(_explain(problem) for problem in error.errors())) from error


def _prepare(kind: type, document: object, place: str) -> dict[str, Any]:
    """Names checked, labels and rates read; types are the adapter's."""
    if not isinstance(document, Mapping):
        raise TreeError(f"{place}: a mapping of settings is expected, and it is {type(document).__name__}")
    known = {field.name for field in fields(kind)}
    prepared: dict[str, Any] = {}
    for name, value in document.items():
        where = f"{place}.{name}"
        if name not in known:
            raise TreeError(f"{where}: no such setting; known here are {', '.join(sorted(known))}")
        if name in ("classes", "children"):
            prepared[name] = _classes(value, where)
        elif name in _NESTED:
            prepared[name] = _prepare(_NESTED[name], value, where)
        elif name in _RATES:
            prepared[name] = None if value is None else _rate(value, where)
        elif name == "priority":
            prepared[name] = _priority(value, where)
        else:
            prepared[name] = value
    return prepared


def _classes(value: object, place: str) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list | tuple):
        raise TreeError(f"{place}: a list of classes is expected")
    return tuple(_prepare(ClassConfig, child, f"{place}[{number}]") for number, child in enumerate(value))


def _rate(value: object, place: str) -> dict[str, float]:
    """`50%` is a share of the parent's rate; a number is cost units a second."""
    text = str(value).strip()
    try:
        if text.endswith("%"):
            return {"share": float(text[:-1]) / 100}
        return {"units_s": float(text)}
    except ValueError:
        raise TreeError(
            f"{place} = {value!r}: write a share of the parent's rate as 50%, or cost units a second"
        ) from None


def _priority(value: object, place: str) -> PriorityClass:
    try:
        return PriorityClass.from_label(str(value))
    except ValueError as error:
        raise TreeError(f"{place}: {error}") from None


def _explain(problem: Any) -> str:
    place = "tree" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"])
    return f"{place}: {problem['msg'].removeprefix('Value error, ')}"
