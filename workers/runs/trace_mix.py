"""From traces to one stream of requests: classes, tenants and flows assigned, arrivals made up or scaled, merged.

Knows sources as they are written on the command line and what each asks for. Does not know file formats
(`workers.runs.trace_files`) or the engine: a load is a factor on time, and who knows the capacity computes it.

A source is `FILE@key=value,…`, `synthetic@key=value,…` or a named mix (`workers.runs.named_mixes`), `chat@key=value,…`:

| key | meaning |
|---|---|
| `class=p1` or `class=p0:0.3+p1:0.7` | class, or a random split in these proportions; default: the file's, else p1 |
| `tenant=a` or `tenant=a:2+b:1` | tenants, in these proportions; default: the file's, else the file's name |
| `tenants=5` | so many tenants, NAME-0, NAME-1, …, equally often |
| `flows=8` | so many flows a tenant, equally often; default: the file's, else one |
| `limit=1000` | only the first 1,000 requests |
| `rate=2.5` | mean requests a second: scales a trace's time, and makes Poisson arrivals where there are none |
| `start=30` | seconds by which the whole source is delayed |
| `requests=`, `prompt=`, `output=` | of a synthetic source: how many, and their lengths in tokens; of a mix: how many |

A synthetic source without `rate` arrives all at once. Everything random is drawn from the seed, the source's place and
the purpose, so that a change to one source changes no other.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Generic, TypeVar

from scheduling.priority import PriorityClass
from workers.runs.named_mixes import NAMED_MIXES
from workers.runs.trace_files import Trace, TraceRequest

__all__ = ["ArrivingRequest", "SourceError", "TraceSource", "mix", "parse_source", "scaled"]

SYNTHETIC = "synthetic"
_FILE_KEYS = frozenset({"class", "tenant", "tenants", "flows", "limit", "rate", "start"})
_MIX_KEYS = (_FILE_KEYS - {"limit"}) | {"requests"}
_SYNTHETIC_KEYS = _MIX_KEYS | {"prompt", "output"}

T = TypeVar("T")
_Shares = tuple[tuple[T, float], ...]


class SourceError(ValueError):
    """A source that makes no sense. The message names it, the key and the remedy."""


@dataclass(frozen=True, slots=True)
class ArrivingRequest:
    """A request of the simulated stream: nothing is left open."""

    number: int
    """Its place in the stream, from 0, in order of arrival."""
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    """What it will generate: known to the simulated model, not to the scheduler."""
    priority: PriorityClass
    tenant: str
    flow: str
    prefix_hashes: tuple[int, ...] = ()
    prefix_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TraceSource:
    """A source as it was asked for."""

    text: str
    path: Path | None
    """None: synthetic, or a named mix."""
    name: str = SYNTHETIC
    """Of the mix."""
    classes: _Shares[PriorityClass] = ()
    tenants: _Shares[str] = ()
    tenant_count: int | None = None
    flows: int | None = None
    limit: int | None = None
    rate: float | None = None
    start_s: float = 0.0
    synthetic_requests: int = 0
    synthetic_prompt_tokens: int = 0
    synthetic_output_tokens: int = 0

    def synthetic(self) -> Trace:
        """The trace of a synthetic source or a named mix. Without arrivals."""
        assert self.path is None
        if self.name != SYNTHETIC:
            lengths = NAMED_MIXES[self.name].lengths(self.synthetic_requests, self.name)
            drawn = tuple(TraceRequest(0.0, prompt, output) for prompt, output in lengths)
            return Trace(self.name, "mix", timed=False, requests=drawn)
        request = TraceRequest(0.0, self.synthetic_prompt_tokens, self.synthetic_output_tokens)
        return Trace(SYNTHETIC, SYNTHETIC, timed=False, requests=(request,) * self.synthetic_requests)


# --- reading a source -------------------------------------------------------------------------------------------------


def parse_source(text: str) -> TraceSource:
    """Raises `SourceError`."""
    name, _, rest = text.partition("@")
    if not name:
        mixes = ", ".join((SYNTHETIC, *NAMED_MIXES))
        raise SourceError(f"source {text!r}: a file name, or one of {mixes}, comes before the @")
    values: dict[str, str] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not value:
            raise SourceError(f"source {text!r}: {part!r} is not key=value")
        if key in values:
            raise SourceError(f"source {text!r}: {key} is given twice")
        values[key] = value
    known_keys = {SYNTHETIC: _SYNTHETIC_KEYS} | dict.fromkeys(NAMED_MIXES, _MIX_KEYS)
    known = known_keys.get(name, _FILE_KEYS)
    for key in values:
        if key not in known:
            raise SourceError(f"source {text!r}: no key {key!r} here; known are {', '.join(sorted(known))}")
    if "tenant" in values and "tenants" in values:
        raise SourceError(f"source {text!r}: give either tenant= or tenants=")
    source = TraceSource(
        text=text,
        path=None if name in known_keys else Path(name),
        name=name if name in NAMED_MIXES else SYNTHETIC,
        classes=_classes(text, values.get("class")) or (NAMED_MIXES[name].classes if name in NAMED_MIXES else ()),
        tenants=_shares(text, "tenant", values.get("tenant")),
        tenant_count=_whole(text, "tenants", values.get("tenants")),
        flows=_whole(text, "flows", values.get("flows")),
        limit=_whole(text, "limit", values.get("limit")),
        rate=_positive(text, "rate", values.get("rate")),
        start_s=_number(text, "start", values.get("start", "0")),
    )
    if name not in known_keys:
        return source
    needed = ("requests", "prompt", "output") if name == SYNTHETIC else ("requests",)
    missing = [key for key in needed if key not in values]
    if missing:
        raise SourceError(f"source {text!r}: {name} needs {', '.join(missing)} as well")
    counts = {key: _whole(text, key, values[key]) or 0 for key in needed}
    return replace(
        source,
        synthetic_requests=counts["requests"],
        synthetic_prompt_tokens=counts.get("prompt", 0),
        synthetic_output_tokens=counts.get("output", 0),
    )


def _classes(text: str, value: str | None) -> _Shares[PriorityClass]:
    try:
        return tuple((PriorityClass.from_label(label), share) for label, share in _shares(text, "class", value))
    except ValueError as error:
        raise SourceError(f"source {text!r}: {error}") from error


def _shares(text: str, key: str, value: str | None) -> _Shares[str]:
    """`a`, or `a:2+b:1`."""
    if value is None:
        return ()
    shares: list[tuple[str, float]] = []
    for part in value.split("+"):
        name, colon, share = part.partition(":")
        shares.append((name, (_positive(text, key, share) or 1.0) if colon else 1.0))
    return tuple(shares)


def _number(text: str, key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        raise SourceError(f"source {text!r}: {key}={value} is not a number") from None
    if not 0 <= number < float("inf"):
        raise SourceError(f"source {text!r}: {key}={value} must be a number from 0 up")
    return number


def _positive(text: str, key: str, value: str | None) -> float | None:
    if value is None:
        return None
    number = _number(text, key, value)
    if number == 0:
        raise SourceError(f"source {text!r}: {key}={value} must be above 0")
    return number


def _whole(text: str, key: str, value: str | None) -> int | None:
    if value is None:
        return None
    if not value.isdecimal() or int(value) == 0:
        raise SourceError(f"source {text!r}: {key}={value} must be a whole number from 1 up")
    return int(value)


# --- one stream -------------------------------------------------------------------------------------------------------


def mix(sources: Sequence[tuple[TraceSource, Trace]], seed: int) -> tuple[ArrivingRequest, ...]:
    """All sources as one stream, in order of arrival. Raises `SourceError`."""
    merged: list[tuple[TraceRequest, PriorityClass, str, str]] = []
    for place, (source, trace) in enumerate(sources):
        requests = trace.requests[: source.limit]
        classes = _Draw(source.classes, Random(f"{seed}/{place}/class"))
        tenants = _Draw(_tenants(source, trace), Random(f"{seed}/{place}/tenant"))
        flows = Random(f"{seed}/{place}/flow")
        arrivals = _arrivals(source, trace, requests, Random(f"{seed}/{place}/arrival"))
        for request, arrival_s in zip(requests, arrivals, strict=True):
            # P0 is 0, so `or` would take it for nothing.
            drawn = classes.next()
            asked = request.priority if drawn is None else drawn
            priority = PriorityClass.P1 if asked is None else asked
            tenant = tenants.next() or request.tenant or trace.name
            flow = request.flow or ""
            if source.flows is not None:
                flow = f"{flow}{flows.randrange(source.flows)}"
            merged.append((replace(request, arrival_s=arrival_s), priority, tenant, flow or tenant))
    merged.sort(key=lambda item: item[0].arrival_s)  # stable: what arrives together stays in the order of the sources
    return tuple(
        ArrivingRequest(
            number,
            request.arrival_s,
            request.prompt_tokens,
            request.output_tokens,
            priority,
            tenant,
            flow,
            request.prefix_hashes,
            request.prefix_tokens,
        )
        for number, (request, priority, tenant, flow) in enumerate(merged)
    )


def scaled(requests: Iterable[ArrivingRequest], factor: float) -> tuple[ArrivingRequest, ...]:
    """The same stream with its time stretched by `factor` (0: all at once)."""
    return tuple(replace(request, arrival_s=request.arrival_s * factor) for request in requests)


def _tenants(source: TraceSource, trace: Trace) -> _Shares[str]:
    if source.tenant_count is None:
        return source.tenants
    return tuple((f"{trace.name}-{number}", 1.0) for number in range(source.tenant_count))


def _arrivals(source: TraceSource, trace: Trace, requests: Sequence[TraceRequest], random: Random) -> list[float]:
    if not trace.timed:
        if source.rate is None:
            if source.path is not None:
                raise SourceError(f"source {source.text!r}: {trace.name} has no arrivals; give rate=REQUESTS_A_SECOND")
            return [source.start_s] * len(requests)
        return [source.start_s + gap for gap in accumulate(random.expovariate(source.rate) for _ in requests)]
    factor = 1.0
    if source.rate is not None:
        span_s = requests[-1].arrival_s
        if span_s == 0:
            raise SourceError(f"source {source.text!r}: all its requests arrive at once, so it has no rate to scale")
        factor = len(requests) / (source.rate * span_s)
    return [source.start_s + request.arrival_s * factor for request in requests]


class _Draw(Generic[T]):
    """A random choice in given proportions, again and again; None if there is nothing to choose from."""

    def __init__(self, shares: _Shares[T], random: Random) -> None:
        self._names = [name for name, _ in shares]
        self._bounds = list(accumulate(share for _, share in shares))
        self._random = random

    def next(self) -> T | None:
        if len(self._names) < 2:
            return self._names[0] if self._names else None
        return self._random.choices(self._names, cum_weights=self._bounds)[0]
