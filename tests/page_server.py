"""A web server on loopback with a few pages, which remembers who asked for what."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[BaseHTTPRequestHandler], None]


class PageServer:
    """Pages by path: bytes, with the kind of content that `kinds` says, or a function that answers."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes | Answer] = {}
        self.kinds: dict[str, str] = {}
        self.requests: list[str] = []
        self.credentials: list[str | None] = []
        """The header Authorization of each request."""
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"


@contextmanager
def serving() -> Iterator[PageServer]:
    """A server, until the end of the block."""
    server = PageServer()
    threading.Thread(target=server.http.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server
    finally:
        server.http.shutdown()
        server.http.server_close()


def redirect(target: str) -> Answer:
    """An answer that sends to another address."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", target)
        handler.end_headers()

    return answer


def endless(handler: BaseHTTPRequestHandler) -> None:
    """An answer that does not end, until nobody listens."""
    handler.send_response(200)
    handler.end_headers()
    with suppress(OSError):
        while True:
            handler.wfile.write(b"x" * (1 << 20))


def _handler(server: PageServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.requests.append(self.path)
            server.credentials.append(self.headers.get("Authorization"))
            page = server.pages.get(self.path.partition("?")[0])
            if page is None:
                self.send_error(404)
            elif isinstance(page, bytes):
                self.send_response(200)
                self.send_header("Content-Type", server.kinds.get(self.path, "text/html"))
                self.end_headers()
                self.wfile.write(page)
            else:
                page(self)

        do_HEAD = do_GET  # noqa: N815 - the name is that of http.server

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
