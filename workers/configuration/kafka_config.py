"""The configuration of the connection to Kafka, and of what a worker is called there.

Knows every setting of the section, its unit, its default and its bounds. Apart from the other sections, for a command
that only talks to Kafka has no use for those.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr

from workers.configuration.section import Section

__all__ = ["KafkaConfig"]


class KafkaConfig(Section):
    bootstrap_servers: str = "127.0.0.1:9092"
    """Comma-separated host:port list of the brokers."""
    topic_prefix: str = Field("inference", pattern=r"^[a-zA-Z0-9._-]{1,100}$")
    """Topics are PREFIX.p0 … PREFIX.p3, PREFIX.deltas and so on. One prefix a model."""
    group_prefix: str = Field("headrace", pattern=r"^[a-zA-Z0-9._-]{1,100}$")
    """Consumer groups are GROUP_PREFIX.TOPIC, one a class."""
    client_id: str = "headrace-worker"
    """Shown in the broker's logs and metrics."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """How to talk to the broker."""
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = "PLAIN"
    """Used with SASL_* protocols."""
    sasl_username: str | None = None
    """Of PLAIN and SCRAM."""
    sasl_password: SecretStr | None = None
    """Of PLAIN and SCRAM; better in the environment, or in a file of its own, than here."""
    sasl_password_file: Path | None = None
    """A file that holds nothing but the password, such as a mounted secret."""
    sasl_oauth_token_file: Path | None = None
    """Of OAUTHBEARER: a file that holds the token. It is read anew for each connection: keep it fresh."""
    ssl_cafile: Path | None = None
    """PEM file of the authorities to trust; the system's where absent."""
    ssl_certfile: Path | None = None
    """PEM file of this client's certificate, where the brokers ask for one."""
    ssl_keyfile: Path | None = None
    """PEM file of that certificate's key."""
    ssl_keyfile_password: SecretStr | None = None
    """Of the key file, if it is encrypted; better in the environment than here."""
    session_timeout_ms: int = Field(10_000, ge=1_000)
    """A worker that sends no heartbeat for so long loses its partitions."""
    instance_id: str | None = Field(None, pattern=r"^[a-zA-Z0-9._-]{1,100}$")
    """This worker's own name among all that live; the same after a restart. Absent: the host's name and a number that
    no other worker on it has."""
    static_membership: bool = False
    """True: a worker that comes back under its name within the session time-out gets its partitions back, without a
    rebalance that stops the others. A worker that leaves for good then keeps its partitions until that time is over."""
    transaction_timeout_ms: int = Field(10_000, ge=1_000)
    """A transaction that a dead worker left open holds its partitions' next owner, and readers of replies, for so
    long, unless a worker of the same name starts before. (Brokers look every 10 s as they are shipped.)"""
    commit_interval_ms: int = Field(500, ge=10)
    """Delivery at least once: how often the offsets of completed requests are committed."""
