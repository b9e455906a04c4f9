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
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}, "set sasl_oauth_token_file"),
        (
            {
                "security_protocol": "SASL_SSL",
                "sasl_username": "me",
                "sasl_password": "hunter2",
                "sasl_password_file": Path("password"),
            },
            "both set",
        ),
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


def test_a_password_in_a_file_is_read_without_its_line_break(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hunter2 \n", encoding="utf-8")
    settings = KafkaSettings(
        "a:1", security_protocol="SASL_PLAINTEXT", sasl_username="me", sasl_password_file=tmp_path / "password"
    )
    assert settings.client_arguments("p0")["sasl_plain_password"] == "hunter2 "


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff\xfe"], ids=["missing", "empty", "blank", "no text"])
@pytest.mark.parametrize("field", ["sasl_password_file", "sasl_oauth_token_file"])
def test_a_secret_that_cannot_be_read_names_its_file(tmp_path: Path, field: str, content: bytes | None) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    mechanism = "OAUTHBEARER" if "token" in field else "PLAIN"
    fields: dict[str, Any] = {field: file, "sasl_username": "me", "sasl_mechanism": mechanism}
    settings = KafkaSettings("a:1", security_protocol="SASL_PLAINTEXT", **fields)
    with pytest.raises(KafkaSettingsError, match=field):
        settings.client_arguments("p0")


async def test_a_token_that_is_renewed_in_its_file_is_used_for_the_next_connection(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n", encoding="ascii")
    settings = KafkaSettings(
        "a:1", security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", sasl_oauth_token_file=file
    )
    provider = settings.client_arguments("p0")["sasl_oauth_token_provider"]
    assert await provider.token() == "first"
    file.write_text("second", encoding="ascii")
    assert await provider.token() == "second"
