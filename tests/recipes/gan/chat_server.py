"""A server of chat completions on loopback, for tests."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def completion(text: str | None) -> bytes:
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()


class ChatServer:
    """Gives the planned replies, one a request, the last one again and again: (status, body, headers), or a function
    of the handler."""

    def __init__(self) -> None:
        self.replies: list[Any] = []
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.released = threading.Event()
        handler = type("Handler", (_Handler,), {"plan": self})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        """End it, and whatever waits in it."""
        self.released.set()
        self.http.shutdown()
        self.http.server_close()


class _Handler(BaseHTTPRequestHandler):
    plan: ChatServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        plan = self.plan
        plan.requests.append((self.path, dict(self.headers), json.loads(body)))
        reply = plan.replies.pop(0) if len(plan.replies) > 1 else plan.replies[0]
        if callable(reply):
            reply(self)
            return
        status, content, *headers = reply
        self.send_response(status)
        for name, value in (headers[0] if headers else {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self) -> None:
        """What a redirect of a POST becomes."""
        self.plan.requests.append((self.path, dict(self.headers), None))
        self.send_error(404)

    def log_message(self, *args: Any) -> None:
        """Nothing on the screen."""
