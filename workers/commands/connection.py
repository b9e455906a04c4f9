"""The flags that every command which talks to Kafka has, and what they become.

Knows the connection part of the command line. Not a command itself.

Where nothing but flags is given, the other sections of the configuration are what they are without any, and are not
loaded: that would take longer than many a command takes.
"""

import argparse
import os

from pydantic import SecretStr, ValidationError

from topics.kafka_settings import KafkaSettings, KafkaSettingsError
from workers.cli import UsageError
from workers.configuration.kafka_config import KafkaConfig
from workers.configuration.section import ENVIRONMENT_PREFIX

__all__ = ["add_kafka_arguments", "connection", "kafka_config", "kafka_settings", "topic_prefix"]


def add_kafka_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bootstrap-servers", metavar="HOST:PORT[,…]", help="the brokers (kafka.bootstrap_servers, 127.0.0.1:9092)"
    )
    parser.add_argument("--topic-prefix", metavar="NAME", help="of all topics (kafka.topic_prefix, inference)")


def connection(config: KafkaConfig, client_id: str) -> KafkaSettings:
    """The configuration's connection settings, for one client."""
    try:
        return KafkaSettings(
            bootstrap_servers=config.bootstrap_servers,
            client_id=client_id,
            security_protocol=config.security_protocol,
            sasl_mechanism=config.sasl_mechanism,
            sasl_username=config.sasl_username,
            sasl_password=_secret(config.sasl_password),
            sasl_password_file=config.sasl_password_file,
            sasl_oauth_token_file=config.sasl_oauth_token_file,
            ssl_cafile=config.ssl_cafile,
            ssl_certfile=config.ssl_certfile,
            ssl_keyfile=config.ssl_keyfile,
            ssl_keyfile_password=_secret(config.ssl_keyfile_password),
        )
    except KafkaSettingsError as error:
        raise UsageError(f"kafka: {error}") from error


def _secret(value: SecretStr | None) -> str | None:
    return None if value is None else value.get_secret_value()


def kafka_config(arguments: argparse.Namespace) -> KafkaConfig:
    """The kafka section, with this command's flags over it."""
    flags = {
        name: value for name in ("bootstrap_servers", "topic_prefix") if (value := getattr(arguments, name)) is not None
    }
    if not any(name.upper().startswith(ENVIRONMENT_PREFIX) for name in os.environ):
        try:
            return KafkaConfig(**flags)
        except ValidationError:
            pass  # said below, in the words of the whole configuration
    from workers.configuration.config import ConfigError, load_config

    try:
        return load_config({"kafka": flags} if flags else None).kafka
    except ConfigError as error:
        raise UsageError(str(error)) from error


def kafka_settings(arguments: argparse.Namespace, client_id: str) -> KafkaSettings:
    return connection(kafka_config(arguments), client_id)


def topic_prefix(arguments: argparse.Namespace) -> str:
    return kafka_config(arguments).topic_prefix
