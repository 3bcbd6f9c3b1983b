"""Model folders of somebody else whose files hold anything: they are opened, or refused with one sentence."""

import copy
import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from encoder_toys import backbone_folder
from player_folders import CHATML, player_folder
from samestep import open_causal_lm
from samestep.core.errors import UserError
from samestep.models.sentence_folder import open_encoder
from samestep.models.text_tokenizer import read_tokenizer
from samestep.recipes.mdlm.pretrained import as_config, read_pretrained
from samestep.recipes.mdlm.tokenizer import load_tokenizer

pytestmark = pytest.mark.timeout(300)
CONFIG, GENERATION, TOKENIZER_CONFIG = "config.json", "generation_config.json", "tokenizer_config.json"
WRONG: list[Any] = [
    None, True, -1, 0, 3, 10**6, 10**12, 10**30, 1.5, float("nan"), float("inf"), "", "x", "y" * 5000,
    [], [1], ["x"], [None, [[]]], {}, {"a": 1}, {"content": 5}, {"type": "x", "rope_type": []},
]  # fmt: skip
SOME = 150
"""How many changes of all are tried in the ordinary suite."""
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]
POOLING = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True, "include_prompt": True}
ADDED: dict[str, dict[str, Any]] = {
    CONFIG: {
        **dict.fromkeys(("rope_scaling", "rope_parameters", "torch_dtype", "layer_types", "text_config"), None),
        **dict.fromkeys(("quantization_config", "auto_map", "num_labels", "id2label", "sliding_window"), None),
        **dict.fromkeys(("num_experts", "is_encoder_decoder", "attn_implementation", "head_dim"), None),
    },
    TOKENIZER_CONFIG: dict.fromkeys(
        ("chat_template", "added_tokens_decoder", "extra_special_tokens", "mask_token", "auto_map", "padding_side")
    ),
    GENERATION: dict.fromkeys(("pad_token_id", "bos_token_id", "max_length")),
}
"""Fields that are tried too, though the files of these folders do not have them."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("folders")
    causal, encoder = player_folder(home / "causal", CHATML), backbone_folder("bert", home / "encoder")
    (encoder / "modules.json").write_text(json.dumps(MODULES))
    (encoder / "1_Pooling").mkdir()
    (encoder / "1_Pooling" / "config.json").write_text(json.dumps(POOLING))
    (encoder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "q: "}}))
    (encoder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 20, "do_lower_case": False}))
    return {"causal": causal, "encoder": encoder, "mdlm": mdlm_folder(home / "mdlm", causal)}


def mdlm_folder(folder: Path, tokens: Path) -> Path:
    from safetensors.torch import save_file

    from samestep.models.transformer import Transformer, TransformerConfig

    shape = TransformerConfig(d_model=16, n_layers=1, n_heads=2, mlp_hidden_size=32, vocab_size=300)
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokens / name, folder / name)
    ids = {"mask_token_id": 261, "eos_token_id": 263, "pad_token_id": 263}
    (folder / CONFIG).write_text(json.dumps(as_config(shape, ids, "float32")))
    save_file(Transformer(shape).state_dict(), folder / "model.safetensors")
    return folder


def open_causal(folder: Path) -> None:
    found = open_causal_lm(folder)
    assert found.eos and found.pad >= 0 and len(found.unused) < 10**4
    found.encode_chat([{"role": "user", "content": "so"}])
    found.decode(found.tokenizer("the")["input_ids"])
    found.network()(torch.tensor([[1, 2, 3]]))


def open_sentences(folder: Path) -> None:
    found = open_encoder(folder)
    found.tokenizer("a list of numbers", found.max_length)
    found.prompt("query")
    found.load()


def open_tokenizer(folder: Path) -> None:
    read_tokenizer(folder)("a list of numbers", 10)


def open_mdlm(folder: Path) -> None:
    read_pretrained(folder)
    tokenizer = load_tokenizer(folder)
    tokenizer.decode(tokenizer.encode("a list"))


OPENERS: dict[str, Callable[[Path], None]] = {
    "causal": open_causal,
    "encoder": open_sentences,
    "mdlm": open_mdlm,
    "tokenizer": open_tokenizer,
}


def fields_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each field of a file, and of those inside of it; of long lists and tables, of the first."""
    items = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    for name, inner in items[: 60 if len(path) < 1 else 4]:
        yield (*path, name)
        yield from fields_of(inner, (*path, name))


def changed(value: Any, path: tuple[Any, ...], wrong: Any) -> Any:
    copied = copy.deepcopy(value)
    inner = copied
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = wrong
    return copied


def changes(folder: Path) -> list[tuple[str, tuple[Any, ...], Any]]:
    """File, field and value of each change."""
    found = []
    for file in sorted(folder.rglob("*.json")):
        name = str(file.relative_to(folder))
        content = json.loads(file.read_text())
        content = {**ADDED.get(name, {}), **content} if isinstance(content, dict) else content
        found += [(name, path, wrong) for path in fields_of(content) for wrong in WRONG]
        found += [(name, (), wrong) for wrong in WRONG]
    return found


def attempt(folder: Path, place: Path, change: tuple[str, tuple[Any, ...], Any], opener: Callable[[Path], None]) -> str:
    """What is wrong with what happened; nothing for success and for a sentence."""
    name, path, wrong = change
    content = json.loads((folder / name).read_text())
    content = {**ADDED.get(name, {}), **content} if isinstance(content, dict) and path else content
    (place / name).write_text(json.dumps(changed(content, path, wrong) if path else wrong))
    began = time.monotonic()
    try:
        opener(place)
    except UserError as error:
        if "\n" in str(error):
            return f"several lines: {error}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    finally:
        shutil.copy(folder / name, place / name)
    took = time.monotonic() - began
    return f"it took {took:.0f} s" if took > 20 else ""


def problems(folder: Path, place: Path, kind: str, chosen: list[Any]) -> list[str]:
    shutil.copytree(folder, place)
    found = []
    for change in chosen:
        for way in (kind, "tokenizer") if change[0].startswith("token") else (kind,):
            if said := attempt(folder, place, change, OPENERS[way]):
                found.append(f"{way} {change[0]} {change[1]} = {str(change[2])[:40]!r}: {said[:300]}")
    return found


@pytest.mark.parametrize("kind", ["causal", "encoder", "mdlm"])
def test_every_field_may_hold_anything(folders: dict[str, Path], kind: str, tmp_path: Path) -> None:
    all_changes = changes(folders[kind])
    assert len(all_changes) > 1000
    chosen = random.Random(kind).sample(all_changes, SOME)
    assert not problems(folders[kind], tmp_path / "model", kind, chosen)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["causal", "encoder", "mdlm"])
def test_every_field_and_every_value(folders: dict[str, Path], kind: str, tmp_path: Path) -> None:
    assert not problems(folders[kind], tmp_path / "model", kind, changes(folders[kind]))


HUGE: dict[str, dict[str, Any]] = {
    "layers": {"num_hidden_layers": 1_000_000},
    "more layers": {"num_hidden_layers": 10**9},
    "width": {"hidden_size": 1 << 30},
    "vocabulary": {"vocab_size": 10**12},
    "labels": {"num_labels": 10**9},
    "positions": {"max_position_embeddings": 10**12},
    "experts": {"model_type": "mixtral", "num_local_experts": 10**6, "architectures": ["MixtralForCausalLM"]},
    "types": {"layer_types": ["full_attention"] * 500_000, "num_hidden_layers": 500_000},
    "size": {"note": "x" * (9 << 20)},
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", HUGE)
@pytest.mark.parametrize("kind", ["causal", "encoder"])
def test_a_network_that_its_files_cannot_hold_is_refused_at_once(
    folders: dict[str, Path], kind: str, what: str, tmp_path: Path
) -> None:
    place = Path(shutil.copytree(folders[kind], tmp_path / "model"))
    change(place / CONFIG, **HUGE[what])
    began = time.monotonic()
    if (kind, what) == ("causal", "positions"):  # nothing is made of them
        open_causal_lm(place)
    else:
        with pytest.raises(UserError, match=r"config.json|num_hidden_layers"):
            open_causal_lm(place) if kind == "causal" else open_encoder(place)
    assert time.monotonic() - began < 20


def change(file: Path, **settings: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))


def test_an_mdlm_network_that_its_files_cannot_hold_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    place = Path(shutil.copytree(folders["mdlm"], tmp_path / "model"))
    for huge in ({"n_layers": 10**6}, {"mlp_hidden_size": 1 << 40}, {"embedding_size": 1 << 40}):
        shutil.copy(folders["mdlm"] / CONFIG, place / CONFIG)
        change(place / CONFIG, **huge)
        with pytest.raises(UserError, match=r"fix the sizes in .*config.json: it describes a network with more than"):
            read_pretrained(place)


@pytest.mark.parametrize("wrong", [-1, 10**6, True, "x", 1.0, [1, -1], [[1]], [], {"a": 1}])
@pytest.mark.parametrize("file", [CONFIG, GENERATION])
def test_ends_that_no_token_can_be_are_refused(folders: dict[str, Path], file: str, wrong: Any, tmp_path: Path) -> None:
    place = Path(shutil.copytree(folders["causal"], tmp_path / "model"))
    change(place / GENERATION, eos_token_id=None)
    change(place / file, eos_token_id=wrong)
    with pytest.raises(UserError, match=rf"Fix eos_token_id in .*{file}, or use another folder"):
        _ = open_causal_lm(place).eos


@pytest.mark.parametrize(
    ("file", "field", "wrong", "kind"),
    [
        (CONFIG, "architectures", 5, "a list of texts"),
        (CONFIG, "architectures", [], "a list of texts"),
        (CONFIG, "vocab_size", "x", "a whole number above 0"),
        (CONFIG, "tie_word_embeddings", "no", "true or false"),
        (CONFIG, "rope_scaling", [1], "a table"),
        (CONFIG, "dtype", 32, "a text"),
        (TOKENIZER_CONFIG, "model_max_length", "long", "a number above 0"),
        (TOKENIZER_CONFIG, "model_max_length", float("nan"), "a number above 0"),
        (TOKENIZER_CONFIG, "chat_template", 5, "a template, or a list of templates"),
        (TOKENIZER_CONFIG, "eos_token", ["x"], "a token, as a text or a table"),
        (
            TOKENIZER_CONFIG,
            "added_tokens_decoder",
            {"4294967295": {"content": "x"}},
            "a table of tokens by their numbers",
        ),
    ],
)
def test_a_field_of_another_kind_is_named(
    folders: dict[str, Path], file: str, field: str, wrong: Any, kind: str, tmp_path: Path
) -> None:
    place = Path(shutil.copytree(folders["causal"], tmp_path / "model"))
    change(place / file, **{field: wrong})
    with pytest.raises(UserError, match=rf"Fix {field} in .*{file}, or use another folder: it must be {kind}"):
        open_causal_lm(place)


def test_a_part_of_a_model_is_checked_too(folders: dict[str, Path], tmp_path: Path) -> None:
    place = Path(shutil.copytree(folders["causal"], tmp_path / "model"))
    change(place / CONFIG, text_config={"text_config": {"num_hidden_layers": 10**9}})
    with pytest.raises(UserError, match=r"fix num_hidden_layers in .*config.json: it is 1000000000, and more than"):
        open_causal_lm(place)
