"""A hub on loopback: the few addresses that the Hub's client asks for, with a count of the requests.

It can refuse, break off in the middle of a file, or be gone.
"""

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = b'{"model_type": "toy"}'
TOKENIZER = b'{"version": "1.0"}'


class HubServer:
    """Models and datasets by name, each a dict of files."""

    def __init__(self, models: Mapping[str, Mapping[str, bytes]]) -> None:
        self.models = {name: dict(files) for name, files in models.items()}
        self.requests: list[str] = []
        self.refuse: dict[str, tuple[int, dict[str, str]]] = {}
        """By a part of the path, the status and headers of a refusal."""
        self.break_after: dict[str, int] = {}
        """By file, after how many bytes the connection is closed, whenever it is asked for."""
        self.dies = False
        """Whether the server is gone after the first connection that it broke."""
        self.gone = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def fetched(self) -> list[str]:
        """The files that were downloaded, by name."""
        return sorted(
            line.rpartition("/")[2] for line in self.requests if line.startswith("GET ") and "resolve" in line
        )

    def stop(self) -> None:
        """End it: connections are refused, and open ones are closed when they are next used."""
        self.gone = True
        self._server.shutdown()
        self._server.server_close()


def _handler(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, with_body: bool) -> None:
            if hub.gone:
                self.close_connection = True
                return
            hub.requests.append(f"{self.command} {self.path.partition('?')[0]}")
            refusal = next((answer for part, answer in hub.refuse.items() if part in self.path), None)
            if refusal is not None:
                return self._send(refusal[0], b"", refusal[1], with_body)
            if match := re.match(r"/api/(?:models|datasets)/([^/]+/[^/]+)/revision/([^/?]+)", self.path):
                return self._info(match[1], match[2], with_body)
            if match := re.match(r"/api/(?:models|datasets)/([^/]+/[^/]+)/tree/", self.path):
                return self._tree(hub.models[match[1]], with_body)
            match = re.match(r"(?:/datasets)?/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path)
            if match is None:  # what else the client is curious about
                return self._send(404, b"{}", {}, with_body)
            self._file(hub.models[match[1]][match[3]], match[3], with_body)

        def _info(self, model: str, revision: str, with_body: bool) -> None:
            if model not in hub.models:
                return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, with_body)
            if revision not in ("main", COMMIT):
                return self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, with_body)
            files = [{"rfilename": name, "size": len(data)} for name, data in hub.models[model].items()]
            info = {"id": model, "sha": COMMIT, "siblings": files, "tags": [], "downloads": 0, "private": False}
            self._send(200, json.dumps(info).encode(), {"Content-Type": "application/json"}, with_body)

        def _tree(self, files: Mapping[str, bytes], with_body: bool) -> None:
            listed = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in files.items()
            ]
            self._send(200, json.dumps(listed).encode(), {"Content-Type": "application/json"}, with_body)

        def _file(self, data: bytes, name: str, with_body: bool) -> None:
            headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": COMMIT}
            start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
            if start:
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            stop = hub.break_after.get(name, len(data)) if with_body else len(data)
            self._send(206 if start else 200, data[start:], headers, with_body, stop - start)

        def _send(
            self, status: int, data: bytes, headers: dict[str, str], with_body: bool, stop: int = 1 << 62
        ) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), "Accept-Ranges": "bytes", **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(data[: max(0, stop)])
                if stop < len(data):
                    self.close_connection = True
                    if hub.dies and not hub.gone:
                        hub.stop()

    return Handler


@contextmanager
def serving(models: Mapping[str, Mapping[str, bytes]]) -> Iterator[HubServer]:
    """A hub that ends with the test."""
    server = HubServer(models)
    try:
        yield server
    finally:
        server.stop()


def constants_of(url: str, cache: str) -> dict[str, str]:
    """What the client makes of HF_ENDPOINT and HF_HUB_CACHE when it is imported."""
    files = url + "/{repo_id}/resolve/{revision}/{filename}"
    return {"ENDPOINT": url, "HF_HUB_CACHE": cache, "HUGGINGFACE_CO_URL_TEMPLATE": files}


def use(url: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the client ask this hub, and keep what it gets in this folder."""
    for name, value in constants_of(url, str(cache)).items():
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
