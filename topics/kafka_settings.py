"""How to reach the brokers, and what that is in aiokafka's terms.

Knows addresses, security and client ids. Does not know topics, groups, or what the connection is used for. The one
place where our settings become aiokafka's arguments.
"""

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from topics.aiokafka_reauthentication import authenticate_again
from topics.oauth_token import TokenFile, read_token

__all__ = ["KafkaSettings", "KafkaSettingsError", "SaslMechanism", "SecurityProtocol"]

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]


class KafkaSettingsError(ValueError):
    """Settings that can't work, with the field, its value and the remedy; a secret's value is never shown."""


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Connection settings, shared by every client of one process. Secrets are not in its repr."""

    bootstrap_servers: str
    """Comma-separated host:port list."""
    client_id: str = "headrace"
    """Shown in the broker's logs, metrics and quotas; each connection adds its role."""
    security_protocol: SecurityProtocol = "PLAINTEXT"
    sasl_mechanism: SaslMechanism = "PLAIN"
    """Used with the two SASL protocols, like the next four."""
    sasl_username: str | None = None
    """Of PLAIN and SCRAM, like the password."""
    sasl_password: str | None = field(default=None, repr=False)
    sasl_password_file: Path | None = None
    """A file that holds nothing but the password, instead of the password itself."""
    sasl_oauth_token_file: Path | None = None
    """Of OAUTHBEARER: a file that holds the token, read anew for each connection."""
    ssl_cafile: Path | None = None
    """PEM of the authorities to trust; the system's where absent. Used with SSL and SASL_SSL, like the next three."""
    ssl_certfile: Path | None = None
    """PEM of the client's own certificate, where the broker asks for one."""
    ssl_keyfile: Path | None = None
    ssl_keyfile_password: str | None = field(default=None, repr=False)
    request_timeout_ms: int = 10_000
    """Of one request to a broker. aiokafka's 40 s would make every outage feel that long."""

    def __post_init__(self) -> None:
        for address in self.bootstrap_servers.split(","):
            host, colon, port = address.strip().rpartition(":")
            if not (host and colon and port.isdecimal() and 0 < int(port) < 65_536):
                raise KafkaSettingsError(
                    f"bootstrap_servers = {self.bootstrap_servers!r}: {address.strip()!r} is not host:port; "
                    "write a comma-separated list such as broker-1:9092,broker-2:9092"
                )
        if self.security_protocol.startswith("SASL_"):
            self._check_sasl()
        if self.ssl_keyfile and not self.ssl_certfile:
            raise KafkaSettingsError(f"ssl_keyfile = '{self.ssl_keyfile}' needs its certificate: set ssl_certfile")

    def _check_sasl(self) -> None:
        if self.sasl_mechanism == "OAUTHBEARER":
            if self.sasl_oauth_token_file is None:
                raise KafkaSettingsError("sasl_mechanism = 'OAUTHBEARER' needs a token: set sasl_oauth_token_file")
            return
        if self.sasl_password and self.sasl_password_file:
            raise KafkaSettingsError("sasl_password and sasl_password_file are both set: leave one of them out")
        if not (self.sasl_username and (self.sasl_password or self.sasl_password_file)):
            raise KafkaSettingsError(
                f"security_protocol = {self.security_protocol!r} needs a user name and a password: set sasl_username, "
                "and sasl_password or sasl_password_file; or choose SSL or PLAINTEXT"
            )

    def client_arguments(self, role: str) -> dict[str, Any]:
        """Keyword arguments that every aiokafka client takes. `role` (`p0`, `deltas`, …) ends the client id.

        Reads the files, so call it off a hot path. Raises `KafkaSettingsError` if one can't be read.
        """
        arguments: dict[str, Any] = {
            "bootstrap_servers": [address.strip() for address in self.bootstrap_servers.split(",")],
            "client_id": f"{self.client_id}-{role}",
            "security_protocol": self.security_protocol,
            "request_timeout_ms": self.request_timeout_ms,
        }
        if self.security_protocol.startswith("SASL_"):
            authenticate_again()
            arguments |= self._sasl_arguments()
        if self.security_protocol.endswith("SSL"):
            arguments["ssl_context"] = self._ssl_context()
        return arguments

    def _sasl_arguments(self) -> dict[str, Any]:
        if self.sasl_oauth_token_file is not None and self.sasl_mechanism == "OAUTHBEARER":
            try:
                read_token(self.sasl_oauth_token_file)
            except (OSError, ValueError) as error:
                raise KafkaSettingsError(
                    f"sasl_oauth_token_file = '{self.sasl_oauth_token_file}' can't be used: {error}"
                ) from None
            provider = TokenFile(self.sasl_oauth_token_file)
            return {"sasl_mechanism": self.sasl_mechanism, "sasl_oauth_token_provider": provider}
        return {
            "sasl_mechanism": self.sasl_mechanism,
            "sasl_plain_username": self.sasl_username,
            "sasl_plain_password": self.sasl_password or self._password_in_file(),
        }

    def _password_in_file(self) -> str:
        assert self.sasl_password_file is not None, "checked when it was made"
        try:
            # Editors and `echo` end a file with a line break, and no password does.
            password = self.sasl_password_file.read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise KafkaSettingsError(
                f"sasl_password_file = '{self.sasl_password_file}' can't be read: {type(error).__name__}"
            ) from None
        if not password:
            raise KafkaSettingsError(f"sasl_password_file = '{self.sasl_password_file}' is empty: write the password")
        return password

    def _ssl_context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ssl_cafile)
            if self.ssl_certfile:
                context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile, self.ssl_keyfile_password)
        except OSError as error:  # ssl.SSLError is one
            files = [str(path) for path in (self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile) if path]
            raise KafkaSettingsError(
                f"the TLS files {', '.join(files)} can't be used ({error}): check that they are readable PEM files "
                "that belong together"
            ) from error
        return context
