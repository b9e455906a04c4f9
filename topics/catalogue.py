"""The topics: their names, and what each must be like.

Knows names, partitions, retention and the consumer groups' names; how to create what is missing and how to say what
is wrong. Does not know how a cluster is asked (`topics.admin`) or what the records say.

Partitions are the unit of scale-out: at most so many workers can share a class. Eight lets a class grow to eight
workers without adding partitions later, which would move keys, and with them conversations, to other workers' prefix
caches; and it is few enough that one worker fetches all of them in one request.

The record's timestamp on request topics is the broker's (`LogAppendTime`), since deadlines are counted from it and
clients' clocks are not to be trusted. So it is on the control topic: a cancel means what was sent before it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from topics.admin import AdminError, KafkaAdmin

__all__ = [
    "CLASS_LABELS",
    "Catalogue",
    "CreationReport",
    "Severity",
    "TopicProblem",
    "TopicSpec",
    "check_topics",
    "create_missing_topics",
    "create_topics",
]

CLASS_LABELS = ("p0", "p1", "p2", "p3")

_MIB = 2**20
_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS

_READY_DEADLINE_S = 15.0
_READY_POLL_S = 0.05

_LARGEST_REQUEST = str(2 * _MIB)
"""Above the largest body that a worker takes (1 MB by default), so that a larger one is answered and not refused by
the broker with an error that only its producer sees."""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    name: str
    partitions: int
    configs: Mapping[str, str]
    """Topic settings in Kafka's words."""
    purpose: str

    @property
    def compacted(self) -> bool:
        return self.configs.get("cleanup.policy") == "compact"


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All names derive from two prefixes; several models on one cluster have a topic prefix each."""

    prefix: str = "inference"
    group_prefix: str = "headrace"
    request_partitions: int = 8
    reply_partitions: int = 8
    """Of deltas and of replies. A client reads all of them."""
    replication_factor: int | None = None
    """None: 3, or as many as there are brokers where those are fewer."""

    def requests(self, label: str) -> str:
        """The request topic of a class (`p0` … `p3`)."""
        assert label in CLASS_LABELS, f"{label = }"
        return f"{self.prefix}.{label}"

    def group(self, label: str) -> str:
        """The consumer group of a class."""
        return f"{self.group_prefix}.{self.requests(label)}"

    @property
    def deltas(self) -> str:
        return f"{self.prefix}.deltas"

    @property
    def replies(self) -> str:
        return f"{self.prefix}.replies"

    @property
    def dead_letters(self) -> str:
        return f"{self.prefix}.dlq"

    @property
    def control(self) -> str:
        return f"{self.prefix}.control"

    @property
    def progress(self) -> str:
        return f"{self.prefix}.progress"

    @property
    def offsets(self) -> str:
        return f"{self.prefix}.offsets"

    @property
    def usage(self) -> str:
        return f"{self.prefix}.usage"

    @property
    def reports(self) -> str:
        return f"{self.prefix}.reports"

    @property
    def jobs(self) -> str:
        return f"{self.prefix}.jobs"

    def specs(self) -> tuple[TopicSpec, ...]:
        """Every topic, requests first."""
        requests = {
            "cleanup.policy": "delete",
            "retention.ms": str(7 * _DAY_MS),
            "max.message.bytes": _LARGEST_REQUEST,
            "message.timestamp.type": "LogAppendTime",
        }
        deltas = {
            # Read while they are written, and once more by the next worker after a crash. Short segments, for the one
            # being written is never deleted.
            "cleanup.policy": "delete",
            "retention.ms": str(_HOUR_MS),
            "segment.ms": str(_HOUR_MS // 6),
            "max.message.bytes": str(_MIB),
        }
        replies = {
            # Results of batch jobs wait here to be collected; a long answer is larger than its request.
            "cleanup.policy": "delete",
            "retention.ms": str(7 * _DAY_MS),
            "max.message.bytes": str(8 * _MIB),
        }
        dead_letters = {
            # The original bytes and headers, with room for the new headers.
            "cleanup.policy": "delete",
            "retention.ms": str(30 * _DAY_MS),
            "max.message.bytes": str(4 * _MIB),
        }
        compacted = {"cleanup.policy": "compact", "segment.ms": str(_HOUR_MS)}
        return (
            *(
                TopicSpec(self.requests(label), self.request_partitions, requests, f"requests of class {label}")
                for label in CLASS_LABELS
            ),
            TopicSpec(self.deltas, self.reply_partitions, deltas, "streamed pieces of answers"),
            TopicSpec(self.replies, self.reply_partitions, replies, "finals and errors, one a request"),
            TopicSpec(self.dead_letters, 1, dead_letters, "records that nobody can be answered for"),
            # One partition: orders must be applied in one order.
            TopicSpec(
                self.control,
                1,
                {**compacted, "message.timestamp.type": "LogAppendTime"},
                "orders to the workers: cancel, pause, drain, quotas, policy",
            ),
            # Two or three records a request, all but those that run soon without use; read whole by each new owner.
            TopicSpec(
                self.progress,
                self.request_partitions,
                {
                    **compacted,
                    "segment.ms": str(_HOUR_MS // 6),
                    "segment.bytes": str(8 * _MIB),
                    "min.cleanable.dirty.ratio": "0.1",
                    "delete.retention.ms": "60000",
                },
                "attempts at requests that run",
            ),
            # One record a partition and transaction, but only of maps that outgrow a commit. Cleaned often.
            TopicSpec(
                self.offsets,
                self.request_partitions,
                {**compacted, "segment.ms": str(_HOUR_MS // 6)},
                "maps of completed offsets that outgrow a commit",
            ),
            # Each worker's, once a second; whoever looks starts at the end.
            TopicSpec(
                self.reports,
                1,
                {"cleanup.policy": "delete", "retention.ms": str(_HOUR_MS // 6), "segment.ms": str(_HOUR_MS // 12)},
                "what workers say of themselves, for `headrace top`",
            ),
            TopicSpec(self.jobs, 1, compacted, "state of batch jobs"),
            # One key a request: what is compacted away was written twice for one. It doesn't grow for ever.
            TopicSpec(
                self.usage,
                self.reply_partitions,
                {"cleanup.policy": "compact,delete", "retention.ms": str(90 * _DAY_MS), "segment.ms": str(_DAY_MS)},
                "what each request used, for billing and quotas",
            ),
        )


class Severity(StrEnum):
    ERROR = "error"
    """A worker can't serve with it."""
    WARNING = "warning"
    """It serves, but not as meant."""


@dataclass(frozen=True, slots=True)
class TopicProblem:
    """What is wrong with a topic, and the remedy."""

    topic: str
    severity: Severity
    message: str

    def __str__(self) -> str:
        return f"{self.severity}: topic {self.topic} {self.message}"


@dataclass(frozen=True, slots=True)
class CreationReport:
    created: tuple[str, ...]
    existing: tuple[str, ...]
    problems: tuple[TopicProblem, ...]
    """Of topics that existed and differ from the catalogue. They are left as they are."""


async def create_missing_topics(admin: KafkaAdmin, catalogue: Catalogue) -> CreationReport:
    """Create what isn't there, and return once it can be used. What is there is compared, never changed.

    Raises `AdminError`.
    """
    cluster = await admin.cluster()
    missing = [spec for spec in catalogue.specs() if spec.name not in cluster.topics]
    created = await create_topics(admin, missing, catalogue.replication_factor or min(3, cluster.brokers))
    existing = tuple(spec.name for spec in catalogue.specs() if spec.name not in created)
    problems = await check_topics(admin, catalogue) if existing else []
    return CreationReport(created, existing, tuple(problems))


async def create_topics(admin: KafkaAdmin, specs: Sequence[TopicSpec], replication_factor: int) -> tuple[str, ...]:
    """Create these, and return once they can be used: the names of those that were not there. Raises `AdminError`."""
    created: list[str] = []
    for spec in specs:
        configs = dict(spec.configs)
        if replication_factor >= 3:
            # Acknowledged means that it survives the loss of one broker.
            configs["min.insync.replicas"] = "2"
        if await admin.create_topic(
            spec.name, partitions=spec.partitions, replication_factor=replication_factor, configs=configs
        ):
            created.append(spec.name)
    await _wait_until_usable(admin, created)
    return tuple(created)


async def check_topics(
    admin: KafkaAdmin,
    catalogue: Catalogue,
    *,
    labels: Sequence[str] = CLASS_LABELS,
    workers: int = 1,
) -> list[TopicProblem]:
    """What stands in the way of `workers` workers that serve the classes `labels`; errors first. Empty: all is well.

    Raises `AdminError`.
    """
    cluster = await admin.cluster()
    served = {catalogue.requests(label) for label in labels}
    others = {catalogue.requests(label) for label in CLASS_LABELS} - served
    specs = [spec for spec in catalogue.specs() if spec.name not in others]
    configs = await admin.topic_configs(spec.name for spec in specs if spec.name in cluster.topics)
    problems: list[TopicProblem] = []
    for spec in specs:
        state = cluster.topics.get(spec.name)
        if state is None:
            problems.append(TopicProblem(spec.name, Severity.ERROR, "does not exist: run `headrace topics create`"))
            continue
        if state.leaderless:
            problems.append(
                TopicProblem(
                    spec.name,
                    Severity.ERROR,
                    f"has {state.leaderless} of {state.partitions} partitions without a leader: check the brokers",
                )
            )
        if spec.name in served and state.partitions < workers:
            problems.append(
                TopicProblem(
                    spec.name,
                    Severity.WARNING,
                    f"has {state.partitions} partitions for {workers} workers: {workers - state.partitions} of them "
                    "get none of it; add partitions or run fewer workers",
                )
            )
        problems.extend(_config_problems(spec, configs[spec.name]))
    return sorted(problems, key=lambda problem: problem.severity is not Severity.ERROR)


def _config_problems(spec: TopicSpec, configs: Mapping[str, str]) -> list[TopicProblem]:
    problems: list[TopicProblem] = []
    for name, wanted in spec.configs.items():
        found = configs.get(name)
        if name == "cleanup.policy":
            # Wrong either way: requests compacted away by their key are lost, progress that is deleted by age too.
            wrong, severity = found != wanted, Severity.ERROR
        elif name == "max.message.bytes":
            wrong, severity = found is not None and int(found) < int(wanted), Severity.WARNING
        elif name == "message.timestamp.type":
            wrong, severity = found != wanted, Severity.WARNING
        else:
            # How long things are kept is the operator's to choose.
            continue
        if wrong:
            problems.append(
                TopicProblem(
                    spec.name,
                    severity,
                    f"has {name}={found}, not {wanted}: set it with kafka-configs --alter --add-config {name}={wanted}",
                )
            )
    return problems


async def _wait_until_usable(admin: KafkaAdmin, names: Sequence[str]) -> None:
    """A new topic is there at once, but its partitions' leaders take a moment."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + _READY_DEADLINE_S
    while names:
        topics = (await admin.cluster()).topics
        if all(name in topics and not topics[name].leaderless for name in names):
            return
        if loop.time() > deadline_s:
            raise AdminError(f"the new topics {', '.join(names)} have no leaders after {_READY_DEADLINE_S:g} s")
        await asyncio.sleep(_READY_POLL_S)
