"""The small HTTP server: what it answers, and what it does with those who talk nonsense."""

import contextlib

import pytest

from tests.workers.http_client import ask
from workers.http_endpoint import HttpAnswer, HttpEndpoint, HttpEndpointError


@pytest.fixture
def endpoint() -> HttpEndpoint:
    made = HttpEndpoint("127.0.0.1", 0)
    made.mount("/metrics", lambda: HttpAnswer("up 1\n", content_type="text/plain; version=0.0.4"))
    return made


async def test_a_mounted_page_with_its_type_and_length(endpoint: HttpEndpoint) -> None:
    async with endpoint.serving():
        answer = await ask(endpoint.port, "GET /metrics?x=1 HTTP/1.1")
    head, _, body = answer.partition("\r\n\r\n")
    assert head.splitlines()[0] == "HTTP/1.1 200 OK"
    assert "Content-Type: text/plain; version=0.0.4" in head
    assert "Content-Length: 5" in head
    assert body == "up 1\n"


async def test_head_has_no_body(endpoint: HttpEndpoint) -> None:
    async with endpoint.serving():
        answer = await ask(endpoint.port, "HEAD /metrics HTTP/1.1")
    assert answer.endswith("\r\n\r\n")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET /nothing HTTP/1.1", 404),
        ("POST /metrics HTTP/1.1", 405),
        ("nonsense", 400),
        ("GET /metrics SPDY/9", 400),
        (b"\xff\xfe\x00\r\n\r\n", 400),
    ],
)
async def test_what_is_not_there_or_not_http(endpoint: HttpEndpoint, head: str | bytes, status: int) -> None:
    async with endpoint.serving():
        assert (await ask(endpoint.port, head)).startswith(f"HTTP/1.1 {status} ")


@pytest.mark.parametrize("head", [b"", b"GET /metrics HTTP/1.1\r\n", b"x" * 20_000], ids=["nothing", "half", "endless"])
async def test_a_head_that_never_ends_is_dropped_and_others_are_served(endpoint: HttpEndpoint, head: bytes) -> None:
    async with endpoint.serving():
        with contextlib.suppress(ConnectionError):  # dropped before all of it was sent
            assert await ask(endpoint.port, head) == ""
        assert (await ask(endpoint.port, "GET /metrics HTTP/1.1")).startswith("HTTP/1.1 200 ")


async def test_an_address_that_is_taken_is_told(endpoint: HttpEndpoint) -> None:
    async with endpoint.serving():
        with pytest.raises(HttpEndpointError, match=rf"health.listen: 127.0.0.1:{endpoint.port}"):
            async with HttpEndpoint("127.0.0.1", endpoint.port).serving():
                pass
