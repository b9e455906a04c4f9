"""Connection settings: what is refused, what becomes of them, and that secrets stay out of sight."""

from pathlib import Path
from typing import Any

import pytest

from topics.kafka_settings import KafkaSettings, KafkaSettingsError


def test_plain_text_arguments() -> None:
    assert KafkaSettings("a:9092, b:9093", client_id="worker").client_arguments("p0") == {
        "bootstrap_servers": ["a:9092", "b:9093"],
        "client_id": "worker-p0",
        "security_protocol": "PLAINTEXT",
        "request_timeout_ms": 10_000,
    }


def test_sasl_arguments_and_a_repr_without_the_secrets() -> None:
    settings = KafkaSettings(
        "a:1",
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username="me",
        sasl_password="hunter2",
        ssl_keyfile_password="hunter3",
    )
    arguments = settings.client_arguments("p0")
    assert (arguments["sasl_mechanism"], arguments["sasl_plain_username"]) == ("SCRAM-SHA-512", "me")
    assert arguments["sasl_plain_password"] == "hunter2"
    assert arguments["ssl_context"].check_hostname
    assert "hunter" not in repr(settings)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"bootstrap_servers": "broker"}, "'broker' is not host:port"),
        ({"bootstrap_servers": "a:9092,"}, "not host:port"),
        ({"bootstrap_servers": "a:99999"}, "not host:port"),
        ({"security_protocol": "SASL_PLAINTEXT", "sasl_password": "hunter2"}, "set sasl_username"),
        ({"ssl_keyfile": Path("key.pem")}, "set ssl_certfile"),
    ],
)
def test_settings_that_cannot_work_name_the_field_and_no_secret(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(KafkaSettingsError, match=words) as raised:
        KafkaSettings(**{"bootstrap_servers": "a:1", **fields})
    assert "hunter" not in str(raised.value)


def test_a_missing_certificate_is_named(tmp_path: Path) -> None:
    settings = KafkaSettings("a:1", security_protocol="SSL", ssl_cafile=tmp_path / "ca.pem")
    with pytest.raises(KafkaSettingsError, match=r"ca\.pem"):
        settings.client_arguments("p0")
