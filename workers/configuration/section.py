"""What the sections of the configuration share: the base model, and how lists and pairs are written in one line.

Knows texts. Does not know any setting.
"""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

__all__ = [
    "ENVIRONMENT_PREFIX",
    "ClassFractions",
    "ClassTimes",
    "CommaList",
    "Section",
    "TenantWeights",
    "split_commas",
]

ENVIRONMENT_PREFIX = "HEADRACE_"
"""Of the variables that are settings: `HEADRACE_SECTION__FIELD`."""


def split_commas(value: object) -> object:
    """Lists may be written `a,b` in the environment and in flags; an empty text is an empty list."""
    if not isinstance(value, str):
        return value
    parts = [part.strip() for part in value.split(",")]
    if parts == [""]:
        return []
    if "" in parts:
        raise ValueError("an entry between the commas is empty: write A,B")
    return parts


def _split_pairs(value: object) -> object:
    """Mappings may be written `a=1,b=2` in the environment and in flags; an empty text is an empty mapping."""
    if not isinstance(value, str):
        return value
    pairs: dict[str, str] = {}
    for part in value.split(",") if value.strip() else ():
        # The last =, so that a tenant's own name may hold one.
        name, equals, weight = (piece.strip() for piece in part.rpartition("="))
        if not (name and equals and weight):
            raise ValueError(f"{part.strip()!r} is not NAME=NUMBER: write acme=2,globex=1")
        if name in pairs:
            raise ValueError(f"{name!r} is named twice: each has one value")
        pairs[name] = weight
    return pairs


CommaList = Annotated[tuple[str, ...], BeforeValidator(split_commas)]
TenantWeights = Annotated[dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]], BeforeValidator(_split_pairs)]
ClassTimes = Annotated[
    dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]],
    BeforeValidator(_split_pairs),
]
ClassFractions = Annotated[dict[str, Annotated[float, Field(ge=0, le=1)]], BeforeValidator(_split_pairs)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
