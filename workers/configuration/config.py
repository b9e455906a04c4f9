"""The configuration of a worker: one frozen tree, documented field by field, validated once, handed on in parts.

Knows every setting, its unit, its default and its bounds, and where values come from: defaults, one YAML file, the
environment (`HEADRACE_SECTION__FIELD`) over it, flags over that. Does not know what the parts do with them.
"""

import os
import re
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from workers.configuration.kafka_config import KafkaConfig
from workers.configuration.kv_config import CLASSES, KVConfig, PreemptionConfig, check_partitions
from workers.configuration.scheduling_config import SchedulingConfig
from workers.configuration.section import ENVIRONMENT_PREFIX, ClassTimes, CommaList, Section
from workers.configuration.telemetry_config import TelemetryConfig

__all__ = [
    "ConfigError",
    "EgressConfig",
    "EngineConfig",
    "HealthConfig",
    "IngressConfig",
    "KVConfig",
    "KafkaConfig",
    "ModelConfig",
    "PreemptionConfig",
    "SchedulingConfig",
    "TelemetryConfig",
    "WorkerConfig",
    "load_config",
]

_OTHER_VARIABLES = frozenset({"HEADRACE_CONFIG", "HEADRACE_CACHE_DIR"})
"""Variables that are not settings of a worker: the file itself, the cache folder."""


_SHOWN_CHARACTERS = 80
"""Of a value that is wrong."""

_KUBERNETES_VARIABLE = re.compile(r"HEADRACE_(SERVICE_(HOST|PORT.*)|PORT(_\d+_.*)?)")
"""A Kubernetes service named `headrace` puts these into every pod."""


class ConfigError(Exception):
    """What the user got wrong, in one readable text: each line names a field, its value and the remedy."""


class ModelConfig(Section):
    source: str = "smollm2"
    """A Hugging Face id, a folder, a .gguf file, or `smollm2` (the small model that ships with the demo)."""
    served_names: CommaList = ()
    """Names that a request's `model` field may carry; the first one is written into replies. Empty: the source's
    own name."""
    max_context_tokens: int | None = Field(None, ge=2)
    """Prompt and output together; never above the model's own limit, which is the default."""
    default_max_tokens: int | None = Field(None, ge=1)
    """Output limit of a request that names none; the rest of the context where absent."""


class EngineConfig(Section):
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """auto: bfloat16 where the device computes it natively, else float32."""
    tensor_parallel: int = Field(1, ge=1)
    """Processes, one an accelerator, that hold a part of the model each: GPUs in a row from `device` on."""
    threads: int | None = Field(None, ge=1)
    """CPU threads of the forward; all cores where absent."""
    max_sequences: int = Field(64, ge=1)
    """Requests that run at the same time."""
    step_tokens: int = Field(512, ge=1)
    """Tokens a step may compute, prompts and decodes together; at least max_sequences."""
    step_max_ms: float | None = Field(None, gt=0)
    """A step is planned to be no longer than this; it bounds what an arriving urgent request waits. Absent: one
    second, or four times what a full batch takes to decode where that is longer, so that prompts get on."""
    step_timeout_s: float | None = Field(None, gt=0)
    """A step that takes longer hangs: the worker logs what its threads do, leaves its groups and exits, to be started
    again. Absent: a minute, or thirty planned steps where that is longer."""
    kv_bytes: int | None = Field(None, ge=1)
    """Memory of the KV cache; a share of what is free where absent."""
    speculate: CommaList = ("p0", "p1", "p2", "p3")
    """Classes whose next tokens are guessed from their own text and verified several a step, wherever that is measured
    to be faster. Not one token changes by it. Empty: none."""
    max_run_s: float | None = Field(None, gt=0)
    """A request that has not ended so long after it was admitted, suspensions included, is answered with an error
    (504). Absent: its token limit alone ends it."""


class IngressConfig(Section):
    max_rows: int = Field(500_000, ge=16)
    """Requests read ahead of what runs, the same number of each class that is served; beyond it the class's partitions
    are paused. One that waits takes about a quarter of a kilobyte beside its payload."""
    max_bytes: int = Field(256 * 2**20, ge=2**20)
    """Bytes of the payloads of those requests in memory, divided between the classes by weight. Beyond it those are let
    go of that are likely to run last, and read again from their topic before they run. Records that become dead letters
    may hold as much beside, until a broker has them; then the class's partitions are paused."""
    max_record_bytes: int = Field(1_000_000, ge=1_000)
    """A larger record is answered with an error."""
    allowed_reply_topics: CommaList = ()
    """Topics any request may name in kafka_replyTopic beside PREFIX.replies; a trailing * allows a prefix."""
    max_queue_s: ClassTimes = Field(default_factory=dict)
    """Class → the age, from its record's time stamp, at which a request that still waits is answered with an error
    (504, `expired`), as if it had such an `sla-ms`. Absent: none."""
    tenant_reply_topics: dict[str, CommaList] = Field(default_factory=dict)
    """Tenant → topics that its requests, and no others, may name too."""


class EgressConfig(Section):
    delta_interval_ms: float = Field(25.0, ge=0)
    """Tokens of one stream that come within this time travel in one record; the first goes at once."""
    delta_max_tokens: int = Field(64, ge=1)
    """A delta record covers at most so many tokens before it is sent without waiting."""
    max_pending_bytes: int = Field(64 * 2**20, ge=2**20)
    """Terminal replies waiting for the broker; beyond it nothing new is dispatched."""
    drain_grace_s: float = Field(20.0, ge=0)
    """At SIGTERM running requests may finish within this time; the rest is left for the next worker."""


class DeadLetterConfig(Section):
    """How many requests may be given up because they ended three workers each. Beyond it a worker stops instead."""

    window_s: float = Field(600.0, gt=0)
    """What was given up and what was answered within this time counts, by all workers."""
    max_count: int = Field(100, ge=0)
    """The most that may be given up within it."""
    max_ratio: float = Field(0.2, ge=0, le=1)
    """The largest part of what ended within it, from the fifth given up request on."""


class HealthConfig(Section):
    file: Path | None = None
    """Touched while the worker makes progress; its age tells a supervisor that the worker is stuck."""
    interval_s: float = Field(2.0, gt=0)
    """How often it is touched."""
    listen: str | None = Field(None, pattern=r"^.+:\d{1,5}$")
    """HOST:PORT of a small HTTP server: /livez says whether the engine turns, /readyz whether requests are taken.
    Absent: none. With `serve --devices` each worker has the next port."""
    stall_s: float = Field(120.0, gt=0)
    """A consumer that reads nothing for so long although there is something to read is replaced, and the next time the
    worker ends with an error. Keep it above kafka.transaction_timeout_ms and 10 s more."""


class WorkerConfig(BaseSettings):
    """The whole of it. `load_config` is the way to make one."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=ENVIRONMENT_PREFIX,
        env_nested_delimiter="__",
        enable_decoding=False,  # lists are a,b and mappings a=1,b=2, not JSON
        use_attribute_docstrings=True,
    )

    classes: CommaList = ("p0", "p1", "p2", "p3")
    """The priority classes this worker serves."""
    delivery: Literal["exactly-once", "at-least-once"] = "exactly-once"
    """exactly-once: a terminal reply and the commit of its request are one transaction, and a reader of committed
    records sees one for each request, whatever crashes. at-least-once: some milliseconds less, and after a crash a
    request may be answered again."""
    kafka: KafkaConfig = KafkaConfig()
    model: ModelConfig = ModelConfig()
    engine: EngineConfig = EngineConfig()
    kv: KVConfig = KVConfig()
    preemption: PreemptionConfig = PreemptionConfig()
    scheduling: SchedulingConfig = SchedulingConfig()
    ingress: IngressConfig = IngressConfig()
    egress: EgressConfig = EgressConfig()
    dead_letters: DeadLetterConfig = DeadLetterConfig()
    health: HealthConfig = HealthConfig()
    telemetry: TelemetryConfig = TelemetryConfig()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        assert isinstance(init_settings, InitSettingsSource)
        sources: list[PydanticBaseSettingsSource] = [init_settings, EnvSettingsSource(settings_cls)]
        if file := os.environ.get("HEADRACE_CONFIG"):
            sources.append(InitSettingsSource(settings_cls, _read_yaml(file)))
        return tuple(sources)


def load_config(flags: dict[str, Any] | None = None) -> WorkerConfig:
    """The effective configuration: defaults, the YAML file that `HEADRACE_CONFIG` names, environment, `flags`.

    `flags` is nested like the sections. Raises `ConfigError`.
    """
    _refuse_unknown_variables()
    try:
        config = WorkerConfig(**(flags or {}))
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(problem) for problem in error.errors())) from error
    _check_together(config)
    return config


def _read_yaml(file: str) -> dict[str, Any]:
    try:
        document = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"configuration file {file!r} does not exist: check --config or HEADRACE_CONFIG") from error
    except OSError as error:
        raise ConfigError(f"configuration file {file!r} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"configuration file {file!r} is not UTF-8 (byte {error.start}): save it as UTF-8") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"configuration file {file!r} is not valid YAML: {error}") from error
    if document is None:
        return {}  # nothing but comments
    if not isinstance(document, dict):
        raise ConfigError(
            f"configuration file {file!r} holds a {type(document).__name__}, not sections of settings: "
            "`headrace config` prints one that is right"
        )
    for name in document:
        if not isinstance(name, str):
            raise ConfigError(f"configuration file {file!r}: {name!r} is not the name of a section")
    return document


def _refuse_unknown_variables() -> None:
    sections = set(WorkerConfig.model_fields)
    for name in os.environ:
        ours = name.startswith(ENVIRONMENT_PREFIX) and name not in _OTHER_VARIABLES
        if ours and not _KUBERNETES_VARIABLE.fullmatch(name):
            section = name.removeprefix(ENVIRONMENT_PREFIX).split("__")[0].lower()
            if section not in sections:
                raise ConfigError(f"environment variable {name}: no such setting; sections are {sorted(sections)}")


def _explain(problem: Any) -> str:
    field = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"{field}: no such setting; `headrace config` lists all of them"
    shown = "(not shown)" if "password" in field else _shortened(repr(problem["input"]))
    return f"{field} = {shown}: {problem['msg'].removeprefix('Value error, ')}"


def _shortened(text: str) -> str:
    """A whole section would bury what is wrong with it."""
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"


def _check_together(config: WorkerConfig) -> None:
    try:
        check_partitions(config.kv, config.preemption, config.engine.max_sequences)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    known = CLASSES
    for label in config.ingress.max_queue_s:
        if label not in known:
            raise ConfigError(f"ingress.max_queue_s: {label!r} is not one of {', '.join(known)}")
    for field, labels in (("classes", config.classes), ("engine.speculate", config.engine.speculate)):
        for label in labels:
            if label not in known:
                raise ConfigError(f"{field}: {label!r} is not one of {', '.join(known)}")
    if not config.classes:
        raise ConfigError("classes: at least one of p0, p1, p2, p3 is needed")
    engine = config.engine
    if engine.step_tokens < engine.max_sequences:
        raise ConfigError(
            f"engine.step_tokens = {engine.step_tokens} is less than engine.max_sequences = {engine.max_sequences}: "
            "each running request needs one token a step; raise the first or lower the second"
        )
