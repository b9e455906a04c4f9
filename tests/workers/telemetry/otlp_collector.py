"""A collector on this machine: takes what is posted over OTLP (HTTP, protobuf)."""

import logging
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue


class Collector(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: SimpleQueue[tuple[str, bytes]] = SimpleQueue()
        """Path and body of each request."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:  # the base class's own name
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.put((self.path, body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class's own name
        logging.getLogger(__name__).debug(format, *arguments)
