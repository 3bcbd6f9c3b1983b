"""The Python files that a model's folder names as its own are found without running any, and only right beside it."""

import os
from pathlib import Path
from typing import Any

import pytest

from llada_folder import llada_folder
from samestep.models.carried_code import read_code


@pytest.mark.parametrize(
    ("auto_map", "why"),
    [
        ({"AutoModel": "other/repo--modeling_llada.LLaDAModelLM"}, "names other/repo--modeling_llada.LLaDAModelLM"),
        ({"AutoModel": "../modeling_llada.LLaDAModelLM"}, "which is no class in a file beside it"),
        ({"AutoModel": "code.modeling_llada.LLaDAModelLM"}, "which is no class in a file beside it"),
        ({"AutoModel": "code/modeling_llada.LLaDAModelLM"}, "which is no class in a file beside it"),
        ({"AutoModel": 3}, "names 3, which is no class"),
        ("modeling_llada.LLaDAModelLM", "auto_map in config.json is no table"),
        ({"AutoModel": "absent.LLaDAModelLM"}, "absent.py is missing"),
        ({}, "names any"),
    ],
)
def test_an_auto_map_that_leads_elsewhere(tmp_path: Path, auto_map: Any, why: str) -> None:
    code, contents = read_code(llada_folder(tmp_path / "llada", tmp_path / "ran", auto_map))
    assert why in code.why_not and not contents and not code.sha256 and not code.auto_map


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("from .absent import X", "absent.py is missing"),
        ("from . import absent", "absent.py is missing"),
        ("    from ..convert import X", "modeling_llada.py imports ..convert, which is no file beside it"),
        ("from .. import convert", "which is no file beside it"),
        ("from .parts.convert import X", "modeling_llada.py imports .parts.convert, which is no file beside it"),
        ("from ./convert import X", "which is no file beside it"),
        ("import .absent", "absent.py is missing"),
        ("from .linked import X", "linked.py is a link"),
        ("from .parts import X", "parts.py is no file"),
        ("from .large import X", "large.py is larger than"),
        ("from .latin import X", "latin.py is no UTF-8 text"),
        ("from .pipe import X", "pipe.py is no file"),
    ],
)
def test_an_import_that_leads_elsewhere(tmp_path: Path, line: str, why: str) -> None:
    folder = llada_folder(tmp_path / "llada", tmp_path / "ran")
    (folder / "parts.py").mkdir()
    (folder / "linked.py").symlink_to(folder / "convert.py")
    (folder / "large.py").write_bytes(b"#" * (2**20 + 1))
    (folder / "latin.py").write_bytes(b"# \xe9")
    os.mkfifo(folder / "pipe.py")
    (folder / "modeling_llada.py").write_text(f"import torch\n{line}\n")
    code, contents = read_code(folder)
    assert why in code.why_not and not contents


def test_all_that_is_imported_is_reached_and_nothing_else(tmp_path: Path) -> None:
    folder = llada_folder(tmp_path / "llada", tmp_path / "ran")
    (folder / "modeling_llada.py").write_text(
        "try:\r\n    from .a import (\r\n        X,\r\n    )\r\nexcept E: pass\r\n"
    )
    (folder / "a.py").write_text(
        "import convert\nfrom . import (\n    b as c,  # from .x\n    d,\n)\nfrom .a import Y\n"
    )
    (folder / "b.py").write_text("")
    (folder / "d.py").write_text("from .modeling_llada import X\n" + "\n" * 500_000)
    code, contents = read_code(folder)
    assert sorted(contents) == ["a.py", "b.py", "configuration_llada.py", "d.py", "modeling_llada.py"]
    assert list(code.sha256) == sorted(contents) and not code.why_not
    assert code.contents() == contents
