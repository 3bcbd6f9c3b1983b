"""Models of transformers in local folders: what is loaded, and the sentence for everything that is missing."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from adapter_toys import bench_of
from language_toys import chat_folder
from samestep import GenerationConfig, LocalGenerator, Lora, World
from samestep.core.errors import UserError
from samestep.models.causal_folder import open_causal_lm


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_folder(tmp_path_factory.mktemp("published"))


@pytest.fixture
def folder(published: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(published, tmp_path / "model"))


def test_a_folder_gives_network_and_tokenizer(published: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = open_causal_lm(published, attention="eager")
    network = found.network()
    assert next(network.parameters()).dtype == torch.bfloat16, "as they are stored"
    assert network.config._attn_implementation == "eager"
    stored = load_file(published / "model.safetensors")
    assert torch.equal(network.state_dict()["lm_head.weight"], stored["lm_head.weight"])
    assert (found.eos, found.pad) == ((0,), 1)
    assert found.tokenizer.convert_ids_to_tokens(found.tokenizer("abc").input_ids) == ["a", "b", "c"]
    assert "Loading" not in capfd.readouterr().err, "no progress bar on every rank"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_weights_in_another_type(published: Path, dtype: str) -> None:
    assert next(open_causal_lm(published, dtype=dtype).network().parameters()).dtype == getattr(torch, dtype)


def test_a_chat_becomes_a_prompt(published: Path) -> None:
    found = open_causal_lm(published)
    messages = [{"role": "user", "content": "cab"}]
    prompt = found.encode_chat(messages)
    assert found.tokenizer.convert_ids_to_tokens(prompt) == ["u", "c", "a", "b", "<end>", "a"]
    assert found.encode_chat(messages, answer=False) == prompt[:-1]


def test_it_is_a_network_for_a_learner(published: Path) -> None:
    found = open_causal_lm(published)
    bench = bench_of(World.single(), "ddp", dtype="float32")
    learner = bench.learner(found.network, lora=Lora(rank=2))
    generator = LocalGenerator.of(bench, "write", GenerationConfig(max_new_tokens=5), eos=found.eos, pad=found.pad)
    prompts = [found.encode_chat([{"role": "user", "content": text}]) for text in ("cab", "a")]
    ids = torch.tensor([[0, 0], [0, 1]])
    with learner.inference() as network:
        written = generator(network, prompts, ids, step=0).to_lists()
    with learner.adapters_off() as network:
        assert written == generator(network, prompts, ids, step=0).to_lists(), "fresh adapters have no effect"
    assert next(iter(network.parameters())).dtype == torch.bfloat16, "the base stays as it was stored"


def test_several_tokens_may_end_a_text(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 7]}))
    assert open_causal_lm(folder).eos == (0, 7)


def change_config(**values: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **values}))

    return change


def remove(*patterns: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for pattern in patterns:
            for path in folder.glob(pattern):
                path.unlink()

    return change


def write(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (shutil.rmtree, "is not a folder; give the folder of a model that was downloaded"),
        (remove("config.json"), "has no config.json"),
        (remove("*.safetensors"), "no weights, such as a model.safetensors"),
        (write("config.json", "{"), r"Download or make .*config.json again: it is not JSON"),
        (change_config(model_type="unheard_of"), "config.json cannot be used: .*unheard_of"),
        (change_config(architectures=["LlamaModel"]), "a LlamaModel, which is not a causal language model"),
        (
            change_config(model_type="bert", architectures=["BertForMaskedLM"]),
            "a BertForMaskedLM, which is not a causal language model",
        ),
        (write("adapter_config.json", "{}"), "holds adapters; give the folder of their base"),
        (lambda folder: [remove("*")(folder), write("model-q4.gguf", "")(folder)], "is a GGUF file; convert it"),
    ],
)
def test_a_folder_that_is_no_causal_model_is_refused(
    folder: Path, change: Callable[[Path], object], sentence: str
) -> None:
    change(folder)
    with pytest.raises(UserError, match=sentence):
        open_causal_lm(folder)


def test_code_in_a_folder_is_not_run(folder: Path) -> None:
    change_config(model_type="own", auto_map={"AutoConfig": "own.Own"})(folder)
    write("own.py", "raise SystemExit('this was run')")(folder)
    with pytest.raises(UserError, match="custom code"):
        open_causal_lm(folder)


def test_weights_that_are_missing_are_not_drawn(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"no weights for model.norm.weight; fetch or copy it again"):
        open_causal_lm(folder).network()
    (folder / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(UserError, match=r"Fetch or copy .*model.safetensors again; it cannot be read"):
        open_causal_lm(folder)


def test_other_sentences(folder: Path) -> None:
    with pytest.raises(UserError, match="Set dtype to one of auto, float32"):
        open_causal_lm(folder, dtype="int8")
    with pytest.raises(UserError, match=r"the model in .* cannot be loaded: .*fastest"):
        open_causal_lm(folder, attention="fastest").network()
    with pytest.raises(UserError, match=r"or other messages: its chat template fails"):
        open_causal_lm(folder).encode_chat([{"role": "user"}, "text"])  # type: ignore[list-item]
    remove("chat_template*")(folder)
    with pytest.raises(UserError, match="has no chat template"):
        open_causal_lm(folder).encode_chat([{"role": "user", "content": "a"}])
    remove("tokenizer*")(folder)
    with pytest.raises(UserError, match=r"such as a tokenizer.json; it has no tokenizer"):
        _ = open_causal_lm(folder).tokenizer
    change_config(eos_token_id=None)(folder)
    write("generation_config.json", "{}")(folder)
    chat = open_causal_lm(folder)
    with pytest.raises(UserError, match="has no tokenizer"):
        _ = chat.eos


def test_without_the_library_the_extra_is_named(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(UserError, match=r'pip install "samestep\[hf\]"'):
        open_causal_lm(published)
