"""A folder of transformers or sentence-transformers from somebody else: whatever code it brings or names is not run."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from encoder_toys import backbone_folder
from language_toys import chat_folder
from samestep.core.errors import UserError
from samestep.models.causal_folder import open_causal_lm
from samestep.models.sentence_folder import open_encoder

AUTO = dict.fromkeys(("AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoTokenizer"), "own.Own")
SENTENCE_MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "own.Own"},
    {"idx": 1, "name": "1", "path": "1_Own", "type": "sentence_transformers.models.Pooling"},
]


class Call:
    """Calls a function when it is unpickled."""

    def __init__(self, function: object, *args: object) -> None:
        self.call = (function, args)

    def __reduce__(self) -> tuple:
        return self.call


def change(file: Path, **settings: Any) -> None:
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**known, **settings}))


def bring_code(folder: Path, marker: Path) -> None:
    """Code in every place where libraries look for it."""
    text = f"open({str(marker)!r}, 'w').close()\nclass Own: ...\n"
    names = ("own.py", "__init__.py", "modeling_own.py", "custom_generate/generate.py", "sitecustomize.py", "peft.py")
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def open_all(folder: Path) -> None:
    """Everything that is ever read of a folder; refusing it is fine."""
    for kind in (open_causal_lm, open_encoder):
        with suppress(UserError):
            found: Any = kind(folder)
            assert found.tokenizer is not None
            found.network()
        with suppress(UserError):
            found = kind(folder)
            found.load() if kind is open_encoder else found.network()


@pytest.fixture(params=["chat", "bert"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, which is the working directory too."""
    place = tmp_path / "model"
    place = chat_folder(place) if request.param == "chat" else backbone_folder("bert", place)
    monkeypatch.chdir(place)
    bring_code(place, tmp_path / "ran")
    return place


@pytest.mark.parametrize("model_type", [None, "own"])
def test_code_that_a_folder_brings(folder: Path, tmp_path: Path, model_type: str | None) -> None:
    known = {} if model_type is None else {"model_type": model_type}
    change(folder / "config.json", auto_map=AUTO, custom_pipelines={"x": {"impl": "own.Own"}}, **known)
    change(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.Own", "own.Own"]})
    change(folder / "generation_config.json", custom_generate="own")
    open_all(folder)
    (folder / "modules.json").write_text(json.dumps(SENTENCE_MODULES))
    open_all(folder)
    assert not (tmp_path / "ran").exists()


def test_a_call_among_the_weights(folder: Path, tmp_path: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    marker = tmp_path / "called"
    torch.save({**weights, "planted": Call(os.mkdir, str(marker))}, folder / "pytorch_model.bin")
    open_all(folder)
    assert not marker.exists()
    torch.load(folder / "pytorch_model.bin", weights_only=False)
    assert marker.exists(), "otherwise this proves nothing"


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation", "experts_implementation"])
@pytest.mark.parametrize("part", [None, "text_config"])
def test_kernels_of_the_hub_are_refused(folder: Path, name: str, part: str | None) -> None:
    kernel = {name: "somebody/kernel@main:attend"}
    change(folder / "config.json", **(kernel if part is None else {part: kernel}))
    for kind in (open_causal_lm, open_encoder):
        with pytest.raises(UserError, match=rf"Remove {name} from .*somebody/kernel.*code of models is not run"):
            kind(folder)


def test_an_implementation_of_transformers_itself_is_fine(tmp_path: Path) -> None:
    folder = chat_folder(tmp_path / "model")
    change(folder / "config.json", attn_implementation="eager")
    assert open_causal_lm(folder).network() is not None
