"""A broker that asks who one is: TLS, and SASL by each mechanism that we speak."""

import asyncio
import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.security.scram_users import make_scram_user
from topics.broker_config import Endpoints, free_port
from topics.kafka_settings import KafkaSettings
from topics.local_broker import LocalBroker

USER, PASSWORD = "worker", "pa55-that-nobody-may-see"
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_LOGIN = {
    "PLAIN": f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
}
EXPIRING = ("SASL_PLAINTEXT", "SCRAM-SHA-512")
"""Connections of these end soon after they were authenticated (KIP-368)."""
_EXPIRES_MS = 5_000


@dataclass(frozen=True, slots=True)
class SecureKafka:
    plain: str
    """Without any security: for the test's own looks."""
    sasl_ssl: str
    sasl_plaintext: str
    ssl: str
    cafile: Path
    """Of the brokers' certificate, which is also the only client certificate that they know."""
    keyfile: Path
    token_file: Path

    def fields(self, protocol: str, mechanism: str = "PLAIN") -> dict[str, Any]:
        """Of `KafkaSettings`, and of the `kafka` section."""
        servers = {"SSL": self.ssl, "SASL_SSL": self.sasl_ssl, "SASL_PLAINTEXT": self.sasl_plaintext}[protocol]
        fields: dict[str, Any] = {"bootstrap_servers": servers, "security_protocol": protocol}
        if protocol.endswith("SSL"):
            fields["ssl_cafile"] = self.cafile
        if protocol == "SSL":
            fields |= {"ssl_certfile": self.cafile, "ssl_keyfile": self.keyfile}
        if protocol.startswith("SASL"):
            fields["sasl_mechanism"] = mechanism
            if mechanism == "OAUTHBEARER":
                fields["sasl_oauth_token_file"] = self.token_file
            else:
                fields |= {"sasl_username": USER, "sasl_password": PASSWORD}
        return fields

    def settings(self, protocol: str, mechanism: str = "PLAIN", **other: Any) -> KafkaSettings:
        return KafkaSettings(**{**self.fields(protocol, mechanism), **other})


@pytest.fixture(scope="session")
def secure_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the test's certificate, and is not installed")
    folder = tmp_path_factory.mktemp("secure-kafka")
    _certificate(folder)
    (folder / "token").write_text(_unsecured_token(), encoding="ascii")
    ports = dict(zip(("plain", "controller", "sasl_ssl", "sasl_plaintext", "ssl"), _free_ports(), strict=True))
    Endpoints(ports["plain"], ports["controller"]).save(folder)
    with LocalBroker(folder, start_timeout_s=120.0, extra_properties=_properties(folder, ports)) as broker:
        asyncio.run(make_scram_user(broker.bootstrap_servers, USER, PASSWORD))
        yield SecureKafka(
            plain=broker.bootstrap_servers,
            **{name: f"127.0.0.1:{ports[name]}" for name in ("sasl_ssl", "sasl_plaintext", "ssl")},
            cafile=folder / "cert.pem",
            keyfile=folder / "key.pem",
            token_file=folder / "token",
        )


def _free_ports() -> list[int]:
    ports: list[int] = []
    while len(ports) < 5:
        if (port := free_port()) not in ports:
            ports.append(port)
    return ports


def _certificate(folder: Path) -> None:
    names = ["-subj", "/CN=headrace-test", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(["openssl", "req", *made, *names], cwd=folder, check=True, capture_output=True)
    pair = (folder / "key.pem").read_text(encoding="ascii") + (folder / "cert.pem").read_text(encoding="ascii")
    (folder / "pair.pem").write_text(pair, encoding="ascii")


def _unsecured_token() -> str:
    """As the broker's own validator for development takes it: without a signature (RFC 7515, appendix A.5)."""
    now_s = int(time.time())
    parts: tuple[dict[str, Any], ...] = ({"alg": "none"}, {"sub": USER, "iat": now_s, "exp": now_s + 86_400})
    encoded = (base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts)
    return ".".join(encoded) + "."


def _properties(folder: Path, ports: dict[str, int]) -> dict[str, str]:
    """Beside the plain listener, one for each way to be told who a client is. No ACLs: who one is decides nothing."""
    listeners = {"PLAINTEXT": "plain", "SASLSSL": "sasl_ssl", "SASLPLAIN": "sasl_plaintext", "TLS": "ssl"}
    protocols = {"SASLSSL": "SASL_SSL", "SASLPLAIN": "SASL_PLAINTEXT", "TLS": "SSL"}
    addresses = [f"{name}://127.0.0.1:{ports[port]}" for name, port in listeners.items()]
    properties = {
        "listeners": ",".join([*addresses, f"CONTROLLER://127.0.0.1:{ports['controller']}"]),
        "advertised.listeners": ",".join(addresses),
        "listener.security.protocol.map": ",".join(
            f"{name}:{protocols.get(name, 'PLAINTEXT')}" for name in (*listeners, "CONTROLLER")
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "pair.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "cert.pem"),
        "listener.name.tls.ssl.client.auth": "required",
    }
    properties["listener.name.saslplain.scram-sha-512.connections.max.reauth.ms"] = str(_EXPIRES_MS)
    for name in ("saslssl", "saslplain"):
        properties[f"listener.name.{name}.sasl.enabled.mechanisms"] = ",".join(_MECHANISMS)
        for mechanism in _MECHANISMS:
            properties[f"listener.name.{name}.{mechanism.lower()}.sasl.jaas.config"] = _LOGIN[mechanism]
    return properties
