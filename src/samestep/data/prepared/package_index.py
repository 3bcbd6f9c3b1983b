"""A file of a package, from where pip would take it.

pip itself runs the `setup.py` of a source package that it only downloads. So pip is asked for its settings alone, and
what they name is read here: pages of links (PEP 503), their JSON form (PEP 691), folders and files. What the file holds
is known before by its hash; so it does not matter who answers, and only time and memory need limits.
"""

import ast
import base64
import hashlib
import html
import os
import re
import ssl
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from threading import Thread
from typing import TypeVar
from urllib import request
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from samestep.core.child_python import child_env, python_command
from samestep.core.errors import first_line
from samestep.core.json_files import parse_json
from samestep.core.paths import expand_home

MOST_BYTES = 16 << 20
"""How long a page or a file may be."""
_SECONDS, _SILENT_SECONDS, _PIP_SECONDS = 600.0, 30.0, 60.0
_MOST_LINKS = 3  # of one page to the same file
_WEB = ("http", "https")
_ACCEPTED = "text/html, application/vnd.pypi.simple.v1+json;q=0.5, */*;q=0.1"
_LINK = re.compile(r"""href\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>"']+))""", re.IGNORECASE)
_SETTING = re.compile(r"(global|download)\.([\w-]+)=(.*)")
_DEFAULT_INDEX = re.compile(r"--index-url\b[^(]*\(default\s+(\S+?)\)")
"""In what pip says of its options: where it looks without any setting."""
_Result = TypeVar("_Result")


class NotFound(Exception):
    """Why a file could not be had, in words for a sentence; never with a password."""


@dataclass(frozen=True)
class PackageFile:
    """A file of a package."""

    project: str
    name: str
    sha256: str

    def is_content(self, content: bytes) -> bool:
        """Whether these bytes are the file."""
        return hashlib.sha256(content).hexdigest() == self.sha256


def pip_settings(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """pip's settings for downloads: those of its files, if there is a pip, and those of the environment."""
    found: dict[str, dict[str, str]] = {"global": {}, "download": {}}
    for line in _ask_pip(env, "config", "list").splitlines():
        if setting := _SETTING.fullmatch(line):
            found[setting[1]][setting[2]] = str(ast.literal_eval(setting[3]))
    named = {name[4:].lower().replace("_", "-"): value for name, value in env.items() if name.startswith("PIP_")}
    given = [settings.items() for settings in (found["global"], found["download"], named)]
    settings = {name: value for part in given for name, value in part if value}
    if "index-url" not in settings and (default := _DEFAULT_INDEX.search(_ask_pip(env, "download", "--help"))):
        settings["index-url"] = default[1]
    return settings


def _ask_pip(env: Mapping[str, str], *args: str) -> str:
    """What pip prints; empty where there is none. It downloads nothing."""
    command = python_command("-m", "pip", *args)
    try:
        done = subprocess.run(
            command, env=child_env(env), capture_output=True, text=True, timeout=_PIP_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def fetch_file(file: PackageFile, settings: Mapping[str, str], seconds: float = _SECONDS) -> bytes:
    """The content of a file, from the first place of pip's `settings` that has it."""
    try:
        return _within(seconds, lambda: _fetch_file(file, settings))
    except ValueError:  # of urllib, which does not say which
        raise NotFound("pip's settings have an address that is none") from None


def _fetch_file(file: PackageFile, settings: Mapping[str, str]) -> bytes:
    pages = _pages(file.project, settings)
    reader = _Reader(settings, pages)
    problems = ["pip names no index"] if not pages else []
    for page in pages:
        try:
            links = [link for link in reader.links(page) if _name(link) == file.name]
            if not links:
                problems.append(f"{_shown(page)} does not have it")
            for link in list(dict.fromkeys(links))[:_MOST_LINKS]:
                if file.is_content(content := reader.read(link).content):
                    return content
                problems.append(f"{_shown(link)} is another file than the one of that name on PyPI")
        except NotFound as problem:
            problems.append(str(problem))
        except OSError as problem:  # a folder that may not be looked into
            problems.append(f"{_shown(page)} cannot be read ({problem.strerror})")
    raise NotFound("; ".join(problems))


def _pages(project: str, settings: Mapping[str, str]) -> list[str]:
    """The addresses where links may be, in the order of pip."""
    pages = settings.get("find-links", "").split()
    if settings.get("no-index", "").lower() not in ("1", "true", "yes", "on", "t", "y"):
        indexes = f"{settings.get('index-url', '')} {settings.get('extra-index-url', '')}".split()
        pages += [f"{index.rstrip('/')}/{project}/" for index in indexes]
    return [page if _is_address(page) else expand_home(page).resolve().as_uri() for page in pages]


def _is_address(page: str) -> bool:
    """Whether this is no path, which find-links may name too."""
    return urlsplit(page).scheme in ("file", *_WEB)


@dataclass(frozen=True)
class _Page:
    address: str
    """Where it was in the end, after redirections."""
    content: bytes
    is_json: bool = False


class _Reader:
    """Reads web addresses as pip is set to, and local files."""

    def __init__(self, settings: Mapping[str, str], pages: list[str]) -> None:
        proxy, certificates = settings.get("proxy"), settings.get("cert")
        try:
            is_folder = certificates is not None and Path(certificates).is_dir()
            context = ssl.create_default_context(
                cafile=None if is_folder else certificates, capath=certificates if is_folder else None
            )
        except OSError as problem:
            raise NotFound(f"the certificates of pip's setting cert cannot be read ({first_line(problem)})") from None
        self._opener = request.OpenerDirector()  # and not build_opener, which would also read files and ftp
        for handler in (
            request.ProxyHandler(dict.fromkeys(_WEB, proxy) if proxy else None),
            request.HTTPHandler(),
            request.HTTPSHandler(context=context),
            request.HTTPDefaultErrorHandler(),
            request.HTTPRedirectHandler(),
            request.HTTPErrorProcessor(),
            request.UnknownHandler(),
            _Credentials(pages),
        ):
            self._opener.add_handler(handler)

    def links(self, address: str) -> Iterator[str]:
        """The addresses that a page links to, or that a folder has. A page of the web links to the web alone."""
        if urlsplit(address).scheme == "file" and (folder := _local_path(address)).is_dir():
            yield from (path.as_uri() for path in sorted(folder.iterdir()))
            address = (folder / "index.html").as_uri()
            if not (folder / "index.html").exists():
                return
        page = self.read(address)
        allowed = _WEB if urlsplit(page.address).scheme in _WEB else ("file", *_WEB)
        for link in _references(page):
            try:
                link = urljoin(page.address, link)
                if urlsplit(link).scheme in allowed:
                    yield link
            except ValueError:  # it is no address
                continue

    def read(self, address: str) -> _Page:
        try:
            page = self._read(address)
        except HTTPError as problem:
            raise NotFound(f"{_shown(address)} answers with HTTP {problem.code}") from None
        except (OSError, HTTPException) as problem:
            reason = problem.reason if isinstance(problem, URLError) else problem
            why = type(problem).__name__ if isinstance(problem, HTTPException) else str(reason)
            raise NotFound(f"{_shown(address)} cannot be read ({why})") from None
        except ValueError:
            raise NotFound(f"{_shown(address)} is no address that can be read") from None
        if len(page.content) > MOST_BYTES:
            raise NotFound(f"{_shown(address)} has more than {MOST_BYTES >> 20} MiB")
        return page

    def _read(self, address: str) -> _Page:
        if urlsplit(address).scheme == "file":
            path = _local_path(address)
            if not path.is_file():  # a pipe would wait forever
                raise NotFound(f"{_shown(address)} is not there")
            with path.open("rb") as opened:
                return _Page(address, opened.read(MOST_BYTES + 1))
        asked = request.Request(_without_user(address), headers={"Accept": _ACCEPTED, "User-Agent": "samestep"})
        with self._opener.open(asked, timeout=_SILENT_SECONDS) as answer:
            kind = answer.headers.get_content_type()
            return _Page(answer.url, answer.read(MOST_BYTES + 1), kind.endswith("json"))


class _Credentials(request.BaseHandler):
    """Names and passwords that pip's settings have in addresses, for the same scheme, host and port alone."""

    def __init__(self, addresses: list[str]) -> None:
        self._known: dict[tuple[object, ...], str] = {}
        for address in addresses:
            parts = urlsplit(address)
            if parts.username is not None:
                pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
                self._known[_origin(parts)] = "Basic " + base64.b64encode(pair.encode()).decode()

    def http_request(self, asked: request.Request) -> request.Request:
        """Called for each request, also for what an answer redirects to."""
        known = self._known.get(_origin(urlsplit(asked.full_url)))
        if known:
            asked.add_unredirected_header("Authorization", known)
        return asked

    https_request = http_request


def _origin(parts: SplitResult) -> tuple[object, ...]:
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _references(page: _Page) -> Iterator[str]:
    """What a page refers to, as it is written there."""
    if not page.is_json:
        for found in _LINK.finditer(page.content.decode("utf-8", "replace")):
            yield html.unescape(found[1] or found[2] or found[3] or "")
        return
    try:
        files = parse_json(page.content)["files"]
        yield from (str(file["url"]) for file in files)
    except (ValueError, KeyError, TypeError):
        raise NotFound(f"{_shown(page.address)} is no list of files") from None


def _local_path(address: str) -> Path:
    parts = urlsplit(address)
    if parts.netloc not in ("", "localhost"):
        raise NotFound(f"{_shown(address)} is on another host")
    return Path(unquote(parts.path).replace("\0", ""))


def _name(address: str) -> str:
    return PurePosixPath(unquote(urlsplit(address).path)).name


def _without_user(address: str) -> str:
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _shown(address: str) -> str:
    """An address without anything that may be a secret."""
    return urlsplit(_without_user(address))._replace(query="", fragment="").geturl()


def _within(seconds: float, work: Callable[[], _Result]) -> _Result:
    """Do this, or give up; a server that sends a byte now and then keeps its reader waiting as long as it likes."""
    done: Future[_Result] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except Exception as problem:
            done.set_exception(problem)

    Thread(target=run, daemon=True).start()
    try:
        return done.result(seconds)
    except TimeoutError:
        raise NotFound(f"it was not there after {seconds:g} s") from None
