"""A file of a package comes from where pip would take it; who answers can neither read, run nor fill anything."""

import base64
import hashlib
import json
import os
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from page_server import PageServer, endless, redirect, serving
from samestep.data.prepared import package_index
from samestep.data.prepared.package_index import NotFound, PackageFile, fetch_file, pip_settings

CONTENT = b"the archive"
FILE = PackageFile("toy", "toy-1.tar.gz", hashlib.sha256(CONTENT).hexdigest())
PAGE, ARCHIVE = "/simple/toy/", "/files/toy-1.tar.gz"
LINKS = b'<a href="../../files/toy-0.tar.gz">old</a> <a HREF = "../../files/toy-1.tar.gz#sha256=0">toy-1.tar.gz</a>'

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def server() -> Iterator[PageServer]:
    with serving() as started:
        started.pages |= {PAGE: LINKS, ARCHIVE: CONTENT}
        yield started


def settings(server: PageServer, user: str = "") -> dict[str, str]:
    return {"index-url": f"{server.url.replace('//', f'//{user}')}/simple"}


def refusal(given: dict[str, str], seconds: float = 30) -> str:
    with pytest.raises(NotFound) as found:
        fetch_file(FILE, given, seconds)
    assert "\n" not in str(found.value)
    return str(found.value)


def test_an_index_of_pages(server: PageServer) -> None:
    assert fetch_file(FILE, settings(server)) == CONTENT
    assert server.requests == [PAGE, ARCHIVE]


def test_an_index_of_json(server: PageServer) -> None:
    server.pages[PAGE] = json.dumps({"files": [{"filename": "toy-1.tar.gz", "url": server.url + ARCHIVE}]}).encode()
    server.kinds[PAGE] = "application/vnd.pypi.simple.v1+json"
    assert fetch_file(FILE, settings(server)) == CONTENT
    for wrong in (b"{}", b"[]", b'{"files": [3]}', b"[" * 100_000, b"\xff"):
        server.pages[PAGE] = wrong
        assert refusal(settings(server)) == f"{server.url}{PAGE} is no list of files"


def test_redirections_stay_on_the_web(server: PageServer, tmp_path: Path) -> None:
    (tmp_path / FILE.name).write_bytes(CONTENT)
    server.pages["/simple/toy/"] = redirect("/moved/x/toy/")
    server.pages["/moved/x/toy/"] = b"<a href='../toy-1.tar.gz'>toy</a>"
    server.pages["/moved/x/toy-1.tar.gz"] = redirect(ARCHIVE)
    assert fetch_file(FILE, settings(server)) == CONTENT
    for elsewhere in (
        f"file://{tmp_path / FILE.name}",
        "ftp://127.0.0.1/toy-1.tar.gz",
        "data:,x",
        PAGE,
        "http://[",
        "",
    ):
        server.pages["/simple/toy/"] = server.pages[ARCHIVE] = redirect(elsewhere)
        assert f"{server.url}{PAGE} " in refusal(settings(server))


@pytest.mark.parametrize(
    "link", ["file://{file}", "{file}", "//[/toy-1.tar.gz", "http://a b/\x00/toy-1.tar.gz", "ftp://x/toy-1.tar.gz"]
)
def test_a_page_of_the_web_names_no_local_file(link: str, server: PageServer, tmp_path: Path) -> None:
    (tmp_path / FILE.name).write_bytes(CONTENT)
    server.pages[PAGE] = f'<a href="{link.format(file=tmp_path / FILE.name)}">toy</a>'.encode()
    refusal(settings(server))


def test_a_password_is_sent_to_its_index_alone_and_never_shown(server: PageServer) -> None:
    sent = "Basic " + base64.b64encode(b"me:p@ss/word").decode()
    given = settings(server, "me:p%40ss%2Fword@")
    assert fetch_file(FILE, given) == CONTENT
    assert server.credentials == [sent, sent]
    with serving() as other:
        other.pages[ARCHIVE] = CONTENT
        server.pages[ARCHIVE] = redirect(other.url + ARCHIVE)
        assert fetch_file(FILE, given) == CONTENT
        server.pages[PAGE] = f"<a href={other.url}{ARCHIVE}?token=x>toy</a>".encode()
        assert fetch_file(FILE, given) == CONTENT
        assert other.credentials == [None, None]
        other.pages.clear()
        said = [refusal(given)]
    said.append(refusal(given))  # the other server is gone
    server.pages.clear()
    said.append(refusal(given))
    said.append(refusal({"index-url": "http://me:p%40ss%2Fword@[/simple"}))
    said.append(refusal({"index-url": "http://me:p%40ss%2Fword@127.0.0.1:none/simple"}))
    assert not [text for text in said if "ss" in text.replace("address", "") or "me:" in text or "token" in text]
    assert said[2] == f"{server.url}{PAGE} answers with HTTP 404"


def test_another_file_of_that_name_is_refused_and_the_next_place_is_asked(server: PageServer) -> None:
    server.pages[ARCHIVE] = b"another archive"
    assert f"{server.url}{ARCHIVE} is another file than the one of that name on PyPI" in refusal(settings(server))
    with serving() as mirror:
        mirror.pages |= {PAGE: LINKS, ARCHIVE: CONTENT}
        given = {**settings(server), "extra-index-url": f"{server.url}/none\n{mirror.url}/simple/"}
        assert fetch_file(FILE, given) == CONTENT


@pytest.mark.parametrize("path", [PAGE, ARCHIVE])
def test_an_answer_without_end_is_cut_off(path: str, server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_index, "MOST_BYTES", 1 << 20)
    server.pages[path] = endless
    assert refusal(settings(server)) == f"{server.url}{path} has more than 1 MiB"


def test_a_page_of_many_links_is_not_followed_for_long(server: PageServer) -> None:
    server.pages[PAGE] = b"".join(b'<a href="/%d/toy-1.tar.gz">' % number for number in range(100))
    refusal(settings(server))
    assert len(server.requests) < 10


def test_an_answer_that_drips_is_given_up(server: PageServer) -> None:
    def drip(handler: BaseHTTPRequestHandler) -> None:
        for _ in range(100):
            handler.wfile.write(b"x")
            time.sleep(0.05)

    server.pages[PAGE] = drip
    began = time.monotonic()
    assert refusal(settings(server), seconds=0.3) == "it was not there after 0.3 s"
    assert time.monotonic() - began < 3


def test_local_folders_and_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "wheels here"
    folder.mkdir()
    (folder / FILE.name).write_bytes(CONTENT)
    index = tmp_path / "simple" / "toy"
    index.mkdir(parents=True)
    (index / "index.html").write_text(f"<a href='{(folder / FILE.name).as_uri()}'>toy</a>")
    monkeypatch.chdir(tmp_path)
    for given in (
        {"find-links": (folder).as_uri(), "no-index": "true"},
        {"find-links": "simple/toy/index.html", "no-index": "1"},
        {"index-url": f"file://{tmp_path}/none", "extra-index-url": f"file://{tmp_path}/simple/"},
    ):
        assert fetch_file(FILE, given) == CONTENT
    (folder / FILE.name).unlink()
    os.mkfifo(folder / FILE.name)
    assert refusal({"find-links": folder.as_uri(), "no-index": "yes"}).endswith("/toy-1.tar.gz is not there")
    assert refusal({"no-index": "1"}) == "pip names no index"


def test_settings_are_those_of_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://a/simple\nfind-links = /one\n    /two\nproxy = p:1\n"
        "[download]\nindex_url = https://b/simple\n[install]\nindex-url = https://c/simple\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_PROXY", "q:2")
    monkeypatch.setenv("PIP_NO_INDEX", "")
    (tmp_path / "pip.py").write_text("raise SystemExit('run')")
    monkeypatch.chdir(tmp_path)
    found = pip_settings()
    assert found["index-url"] == "https://b/simple" and found["proxy"] == "q:2" and "no-index" not in found
    assert found["find-links"].split() == ["/one", "/two"]
    monkeypatch.setattr(package_index, "python_command", lambda *args: ["no-python-here"])
    assert pip_settings() == {"config-file": str(tmp_path / "pip.conf"), "proxy": "q:2"}


def test_without_a_setting_the_index_is_the_default_of_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    address = pip_settings()["index-url"]
    assert address.startswith("https://") and address.endswith("/simple")
