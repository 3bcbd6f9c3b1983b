"""Encoders in folders: what is read, and the sentence for everything that is missing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from encoder_toys import POSITIONS, TEXTS, backbone_folder, padded, vectors_of
from samestep.core.errors import UserError
from samestep.models.sentence_export import write_encoder
from samestep.models.sentence_folder import open_encoder


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return backbone_folder("bert", tmp_path / "plain")


def test_a_plain_folder_is_pooled_by_the_mean(plain: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = open_encoder(plain)
    assert "has no modules.json; its vectors are the mean of its tokens'" in caplog.text
    assert (source.dim, source.max_length, source.prompts) == (16, POSITIONS, {})
    tokens, mask = padded(source.tokenizer, TEXTS[:1], 40)
    encoder = source.load()
    found = encoder.transformer(input_ids=tokens, attention_mask=mask).last_hidden_state.mean(1)
    torch.testing.assert_close(encoder(tokens, mask), found)


@pytest.mark.parametrize("form", ["pickled", "prefix", "layer norms of old", "in two files"])
def test_weights_in_other_forms(plain: Path, form: str) -> None:
    source = open_encoder(plain)
    wanted = vectors_of(source.load(), source.tokenizer, TEXTS, 40)
    file = plain / "model.safetensors"
    weights = load_file(file)
    file.unlink()
    if form == "pickled":
        torch.save(weights, plain / "pytorch_model.bin")
    elif form == "prefix":
        save_file({f"bert.{name}": weight for name, weight in weights.items()} | {"cls.bias": torch.ones(2)}, file)
    elif form == "in two files":
        names = sorted(weights)
        where = {name: f"model-0000{number % 2 + 1}-of-00002.safetensors" for number, name in enumerate(names)}
        for part in set(where.values()):
            save_file({name: weights[name] for name in names if where[name] == part}, plain / part)
        (plain / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    else:
        older = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        for new, old in older.items():
            weights = {name.replace(new, old): weight for name, weight in weights.items()}
        save_file(weights, file)
    again = open_encoder(plain)
    assert torch.equal(vectors_of(again.load(), again.tokenizer, TEXTS, 40), wanted)


@pytest.mark.parametrize(("kind", "positions"), [("bert", 40), ("mpnet", 38), ("xlm-roberta", 38), ("qwen2", 40)])
def test_no_text_is_longer_than_the_positions(tmp_path: Path, kind: str, positions: int) -> None:
    folder = backbone_folder(kind, tmp_path / kind)
    source = open_encoder(folder)
    assert source.max_length == positions
    assert len(source.tokenizer("a " * 100, positions)) == positions
    assert vectors_of(source.load(), source.tokenizer, ["a " * 100], positions).isfinite().all()
    assert open_encoder(folder, max_length=10).max_length == 10
    with pytest.raises(UserError, match=f"Set max_length from 1 to {positions} .* it is 41"):
        open_encoder(folder, max_length=41)


def test_dropout_is_off_unless_asked_for(plain: Path) -> None:
    def probabilities(**options: Any) -> set[float]:
        network = open_encoder(plain, **options).network()
        return {part.p for part in network.modules() if isinstance(part, torch.nn.Dropout)}

    assert probabilities() == {0.0}
    assert probabilities(dropout=0.25) == {0.25, 0.0}, "attention's own stays off"
    assert probabilities(dropout=None) == {0.1}, "as published"
    with pytest.raises(UserError, match="Set dropout to a probability below 1"):
        open_encoder(plain, dropout=1.5)


def test_the_published_configuration_is_what_is_written(plain: Path, tmp_path: Path) -> None:
    source = open_encoder(plain)
    write_encoder(tmp_path / "out", source, source.load().state_dict(), "# A card\n")
    written, read = (json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "out", plain))
    assert written == {**read, "torch_dtype": "float32"}, "and the name that version 4 reads the type under"
    assert written["hidden_dropout_prob"] == 0.1
    assert (tmp_path / "out" / "README.md").read_text() == "# A card\n"


def test_weights_are_of_the_wanted_type(plain: Path) -> None:
    source = open_encoder(plain, dtype="float64").with_projection(20)
    assert {weight.dtype for weight in source.network().parameters()} == {torch.float64}
    assert vectors_of(source.load(), source.tokenizer, TEXTS, 40).dtype == torch.float64
    with pytest.raises(UserError, match=r"Set dtype to one of auto, float32, .* it is 'int8'"):
        open_encoder(plain, dtype="int8")


def test_a_network_without_its_weights_gives_no_numbers(plain: Path) -> None:
    source = open_encoder(plain)
    assert vectors_of(source.network(), source.tokenizer, TEXTS, 40).isnan().all()


def change(name: str, **values: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        file = folder / name
        file.write_text(json.dumps({**(json.loads(file.read_text()) if file.exists() else {}), **values}))

    return edit


def remove(*names: str) -> Callable[[Path], None]:
    return lambda folder: [(folder / name).unlink() for name in names] and None


def modules(*kinds: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        listed = [{"idx": n, "name": str(n), "path": f"{n}_X" if n else "", "type": k} for n, k in enumerate(kinds)]
        (folder / "modules.json").write_text(json.dumps(listed))
        for number in range(1, len(kinds)):
            (folder / f"{number}_X").mkdir(exist_ok=True)
            (folder / f"{number}_X" / "config.json").write_text(
                json.dumps({"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True})
            )

    return write


def each(*edits: Callable[[Path], None]) -> Callable[[Path], None]:
    return lambda folder: [edit(folder) for edit in edits] and None


def without(weight: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        kept = {name: tensor for name, tensor in load_file(folder / "model.safetensors").items() if name != weight}
        save_file(kept, folder / "model.safetensors")

    return edit


OLD = "sentence_transformers.models."
SPARSE = "sentence_transformers.sparse_encoder.models.SpladePooling"
BASIC = modules(f"{OLD}Transformer", f"{OLD}Pooling")


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (remove("config.json"), "has no config.json"),
        (each(BASIC, remove("config.json")), "has no config.json"),
        (remove("model.safetensors"), "Fetch the weights of .*, such as a model.safetensors"),
        (remove("tokenizer.json"), "Copy the tokenizer's files into"),
        (without("encoder.layer.1.output.dense.bias"), "no weights for encoder.layer.1.output.dense.bias, which would"),
        (change("config.json", intermediate_size=30), r"is of shape \(24, 16\), and its config.json means \(30, 16\)"),
        (change("config.json", model_type="unheard_of"), "config.json cannot be used: .*unheard_of"),
        (change("config.json", architectures=["BertForSequenceClassification"]), "a cross-encoder"),
        (change("config_sentence_transformers.json", model_type="CrossEncoder"), "holds a cross-encoder"),
        (change("config_sentence_transformers.json", model_type="SparseEncoder"), "holds a sparse encoder"),
        (modules(f"{OLD}Transformer", SPARSE), "holds a sparse encoder"),
        (each(BASIC, change("sentence_bert_config.json", transformer_task="fill-mask")), "a sparse encoder"),
        (
            change("config.json", quantization_config={"quant_method": "awq", "bits": 4}),
            "as it was before quantization",
        ),
        (change("adapter_config.json"), "Merge the adapters into their base first"),
        (modules("my_code.Transformer"), "names 'my_code.Transformer', and code of models is not run"),
        (modules(f"{OLD}Transformer"), "begins with Transformer and Pooling; .* lists Transformer"),
        (modules(f"{OLD}Transformer", f"{OLD}Pooling", f"{OLD}LSTM"), "names 'LSTM'"),
        (modules(f"{OLD}Transformer", f"{OLD}Pooling", f"{OLD}LayerNorm"), "a number above 0 as dimension"),
        (each(BASIC, change("1_X/config.json", pooling_mode="median")), "pools by one of .* names 'median'"),
        (each(BASIC, change("1_X/config.json", pooling_mode=["mean"] * 10**5)), "pools by one of .* names "),
        (each(BASIC, change("1_X/config.json", pooling_mode=5)), "pools by one of .* names 5"),
        (each(BASIC, change("1_X/config.json", include_prompt=False)), "includes the prompt"),
        (each(BASIC, change("1_X/config.json", embedding_dimension=5)), "pools vectors of 5, not 16"),
        (each(BASIC, remove("1_X/config.json")), "1_X/config.json; it is missing or cannot be read"),
        (change("modules.json"), "is not a list of modules"),
    ],
)
def test_what_cannot_be_used_is_refused(plain: Path, edit: Callable[[Path], None], sentence: str) -> None:
    edit(plain)
    with pytest.raises(UserError, match=sentence) as refusal:
        open_encoder(plain)
    assert "\n" not in str(refusal.value)


def test_a_module_outside_of_the_folder_is_not_read(plain: Path) -> None:
    listed = [{"type": f"{OLD}Transformer", "path": ""}, {"type": f"{OLD}Pooling", "path": "../elsewhere"}]
    (plain / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(UserError, match=r"'[.][.]/elsewhere', which is outside of the folder"):
        open_encoder(plain)


def test_modules_that_do_not_fit_each_other_are_refused(plain: Path) -> None:
    each(
        modules(f"{OLD}Transformer", f"{OLD}Pooling", f"{OLD}Dense"),
        change("2_X/config.json", in_features=9, out_features=4),
    )(plain)
    with pytest.raises(UserError, match="2_X again; it does not fit vectors of 16"):
        open_encoder(plain)


def test_what_is_there_is_not_written_over(plain: Path, tmp_path: Path) -> None:
    source = open_encoder(plain)
    weights = source.load().state_dict()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    for there in (tmp_path / "mine", plain):
        with pytest.raises(UserError, match=r"Choose another folder, or remove it first; .* exists"):
            write_encoder(there, source, weights, "")
    with pytest.raises(UserError, match=r"that this source builds; head[.]1.linear.bias and 7 others"):
        write_encoder(tmp_path / "new", source.with_projection(20), weights, "")
    assert not (tmp_path / "new").exists()
