"""The few questions and orders for a cluster that Headrace has: its topics, their settings, how many brokers.

Knows aiokafka's admin client, whose objects never leave this module. Does not know which topics are wanted
(`topics.catalogue`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaConnectionError, KafkaError, NodeNotReadyError, for_code

from topics.aiokafka_closing import close_bootstrap_connection, close_client
from topics.aiokafka_producer import KafkaUnavailableError
from topics.kafka_settings import KafkaSettings

__all__ = ["AdminError", "ClusterState", "KafkaAdmin", "TopicState"]

_ALREADY_EXISTS = 36
_POLL_S = 0.2


class AdminError(Exception):
    """The cluster refused an order, or did not answer; with its own words."""


@dataclass(frozen=True, slots=True)
class TopicState:
    name: str
    partitions: int
    replication_factor: int
    """The lowest of its partitions."""
    leaderless: int
    """Partitions without a leader: they can't be read or written now."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    brokers: int
    """Alive."""
    topics: Mapping[str, TopicState]
    """Those that this client may see."""


class KafkaAdmin:
    """An async context manager. Every call has a deadline of `timeout_s` and raises `AdminError` past it."""

    def __init__(self, settings: KafkaSettings, *, timeout_s: float = 15.0) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        self._client: Any = None

    async def __aenter__(self) -> Self:
        """Raises `KafkaUnavailableError`."""
        await self._open()
        return self

    async def _open(self) -> None:
        self._client = AIOKafkaAdminClient(**self._settings.client_arguments("admin"))
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._client.start()
        except (KafkaError, TimeoutError, OSError) as error:
            close_bootstrap_connection(error)
            await self._close()
            raise KafkaUnavailableError(self._settings, error) from error
        except BaseException as error:
            close_bootstrap_connection(error)
            await self._close()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        await close_client(self._client._client, self._timeout_s, "a Kafka admin client")

    async def cluster(self) -> ClusterState:
        # All topics rather than the wanted ones: asking for a topic by name creates it on a cluster that allows that.
        topics = await self._ask("list the topics", AIOKafkaAdminClient.describe_topics)
        return ClusterState(
            brokers=await self._live_brokers(),
            topics={topic["topic"]: _topic_state(topic) for topic in topics if topic["error_code"] == 0},
        )

    async def _live_brokers(self) -> int:
        """At least one. A broker that answers may still, or again, be fenced: until the controller lets it serve."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._timeout_s
        while True:
            cluster = await self._ask("list the brokers", AIOKafkaAdminClient.describe_cluster)
            if cluster["brokers"]:
                return len(cluster["brokers"])
            if loop.time() > deadline_s:
                raise AdminError(f"no broker of the cluster was alive for {self._timeout_s:g} s")
            await asyncio.sleep(_POLL_S)

    async def create_topic(
        self, name: str, *, partitions: int, replication_factor: int, configs: Mapping[str, str]
    ) -> bool:
        """False if it exists already. Raises `AdminError`."""
        topic = NewTopic(name, partitions, replication_factor, topic_configs=dict(configs))
        answer = await self._ask(f"create the topic {name}", lambda client: client.create_topics([topic]))
        ((_, code, message),) = answer.topic_errors
        if code == _ALREADY_EXISTS:
            return False
        if code:
            raise AdminError(f"the topic {name} could not be created: {message or for_code(code).__name__}")
        return True

    async def topic_configs(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Topic → setting → value, defaults included."""
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
        if not resources:
            return {}
        found: dict[str, dict[str, str]] = {}
        for answer in await self._ask("read the topics' settings", lambda client: client.describe_configs(resources)):
            for code, message, _, name, entries in answer.resources:
                if code:
                    why = message or for_code(code).__name__
                    raise AdminError(f"the settings of the topic {name} can't be read: {why}")
                found[name] = {entry[0]: entry[1] for entry in entries}
        return found

    async def _ask(self, what: str, question: Callable[[Any], Awaitable[Any]]) -> Any:
        """Asked again while no broker is known to be alive: one that has just started may be fenced a while. And when
        the connection was closed, as brokers close those that were authenticated too long ago (KIP-368)."""
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    try:
                        return await question(self._client)
                    except (NodeNotReadyError, KafkaConnectionError):
                        await asyncio.sleep(_POLL_S)  # nothing tells a client when
                        # One that knows no broker would ask for news in minutes only.
                        await self._close()
                        await self._open()
        except TimeoutError as error:
            raise AdminError(f"could not {what}: no answer within {self._timeout_s:g} s") from error
        except (KafkaError, KafkaUnavailableError, OSError) as error:
            raise AdminError(f"could not {what}: {error!r}") from error


def _topic_state(topic: Mapping[str, Any]) -> TopicState:
    partitions = topic["partitions"]
    return TopicState(
        name=topic["topic"],
        partitions=len(partitions),
        replication_factor=min((len(partition["replicas"]) for partition in partitions), default=0),
        leaderless=sum(partition["leader"] < 0 for partition in partitions),
    )
