"""Settings that come from data and from a pretrained model; what is refused; chats made from Python's help."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from samestep.core.config import compose, dump
from samestep.core.errors import UserError
from samestep.core.json_files import write_json
from samestep.data.order import BucketedOrder, Order, Shuffled
from samestep.data.prepared.config import PrepareConfig
from samestep.data.prepared.prepare import prepare
from samestep.data.prepared.sources import find_sources
from samestep.data.token_rows import AnswerRows
from samestep.data.tokenizer.vocabulary import BYTES
from samestep.models.transformer import Transformer, TransformerConfig
from samestep.recipes.mdlm import MdlmConfig, corpus, recipe
from samestep.recipes.mdlm.config import PRESETS
from samestep.recipes.mdlm.corpus import DataConfig, load
from samestep.recipes.mdlm.objective import Objective
from samestep.recipes.mdlm.pretrained import as_config, special_ids
from samestep.recipes.mdlm.stages import check_corpus, initial_model, resolve_config, stages
from samestep.world.world import World

SHAPE = TransformerConfig(d_model=16, n_layers=1, n_heads=2, mlp_hidden_size=32, max_sequence_length=64)


def composed(*words: str) -> MdlmConfig:
    return compose(MdlmConfig, presets=recipe.presets, aliases=recipe.aliases, args=words)


@pytest.fixture
def characters(tmp_path: Path) -> Path:
    """A prepared folder whose tokens are characters."""
    text = tmp_path / "text.txt"
    text.write_text("To be, or not to be: that is the question.\n" * 200)
    settings = PrepareConfig(out=str(tmp_path / "chars"), tokenizer="char", sequence_length=300)
    prepare(find_sources([str(text)]), settings, lambda what, done, total: None)
    return tmp_path / "chars"


def published(folder: Path, ids: dict[str, int], **shape: Any) -> Path:
    """A published model, whose weights may be any."""
    folder.mkdir()
    write_json(folder / "config.json", as_config(replace(SHAPE, **shape), ids, "float32"))
    save_file(Transformer(replace(SHAPE, **shape)).state_dict(), folder / "model.safetensors")
    return folder


def test_a_fresh_network_fits_its_data(characters: Path) -> None:
    size = load(DataConfig(path=str(characters))).tokenizer.vocabulary.size
    config = resolve_config(composed("--preset=tiny", f"--data_dir={characters}", "--data.sequence_length=null"))
    assert (config.model.vocab_size, config.model.embeddings) == (size, size)
    assert config.model.max_sequence_length == 300, "rows of 300 do not fit into the preset's 256"
    check_corpus(config, load(config.data), initial_model(config, World.single()))
    plain = resolve_config(composed("--preset=tiny"))
    assert (plain.model.vocab_size, plain.model.embeddings, plain.model.max_sequence_length) == (259, 259, 256)


def test_an_embedding_that_is_rounded_up_stays_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_config(composed("--preset=small")).model.embeddings == 320
    larger = SimpleNamespace(vocabulary=replace(BYTES, size=4099, mask=4096, eos=4097))
    monkeypatch.setattr(import_module(stages.__module__), "data_tokenizer", lambda data: larger)
    settled = resolve_config(composed("--preset=small")).model
    assert (settled.vocab_size, settled.embedding_size) == (4099, 4160)


def test_resolving_again_changes_nothing(characters: Path) -> None:
    once = resolve_config(composed("--preset=small", f"--data_dir={characters}"))
    assert dump(resolve_config(once)) == dump(once)


def test_a_published_folder_decides_the_network(tmp_path: Path) -> None:
    folder = published(tmp_path / "model", dict(special_ids(BYTES)), vocab_size=259, embedding_size=300)
    config = resolve_config(composed("--preset=tiny", f"--model_name={folder}"))
    assert (config.model.d_model, config.model.n_layers, config.model.embeddings) == (16, 1, 300)
    check_corpus(config, load(config.data), initial_model(config, World.single()))


def test_data_in_other_tokens_than_the_model_knows_is_refused(tmp_path: Path, characters: Path) -> None:
    ids = {**special_ids(BYTES), "mask_token_id": 5}
    folder = published(tmp_path / "model", ids, vocab_size=400)
    config = resolve_config(composed("--preset=tiny", f"--model_name={folder}"))
    with pytest.raises(UserError, match=r"pydoc_data.topics has other tokens than .*/model; prepare the text"):
        check_corpus(config, load(config.data), initial_model(config, World.single()))


def test_a_model_too_short_for_the_rows_is_refused(tmp_path: Path) -> None:
    folder = published(tmp_path / "model", dict(special_ids(BYTES)), vocab_size=259)
    config = resolve_config(composed("--preset=tiny", f"--model_name={folder}", "--data.sequence_length=65"))
    with pytest.raises(UserError, match=r"model.max_sequence_length to 65 or more"):
        check_corpus(config, load(config.data), initial_model(config, World.single()))


def test_a_missing_model_is_refused_with_what_a_name_may_be() -> None:
    with pytest.raises(UserError, match="a model of the Hub, such as GSAI-ML/LLaDA-8B-Base"):
        resolve_config(composed("--preset=llada-8b", "--model_name=LLaDA-8B-Base"))


def test_the_published_shape() -> None:
    config = composed("--preset=llada-8b")
    with torch.device("meta"):
        network = Transformer(config.model)
    assert sum(p.numel() for p in network.parameters()) == 8_015_581_184
    assert (config.distributed.strategy, config.distributed.mixed_precision) == ("fsdp", "bf16")
    assert config.global_batch_size is None, "batch_size counts per GPU"


@pytest.mark.parametrize(
    ("args", "precision"), [(["--fp16"], "fp16"), (["--no_fp16"], "none"), (["--fp16=false"], "none"), ([], "bf16")]
)
def test_flags_that_people_know(args: list[str], precision: str) -> None:
    flags = ["--data_dir=d", "--model_name=m", "--batch_size=3", "--epochs=2", "--learning_rate=1e-5", "--save_dir=s"]
    config = composed("--preset=small", *flags, *args)
    assert (config.data.path, config.init_from, config.out) == ("d", "m", "s")
    assert (config.batch_size, config.epochs, config.learning_rate) == (3, 2, 1e-5)
    assert config.distributed.mixed_precision == precision


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--ema_decay=1"], "ema_decay must be a number of at least 0 and below 1"),
        (["--sampling.max_new_tokens=300"], "at most model.max"),
    ],
)
def test_what_would_fail_late_is_refused_early(args: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        composed("--preset=tiny", *args)


# ---- chats made from Python's help


def test_questions_are_rows_of_prompt_and_answer() -> None:
    text = corpus.load_questions(DataConfig(**PRESETS["verify-sft"]["data"]))
    assert text.sft
    assert len(text.train) % PRESETS["verify-sft"]["global_batch_size"], "an epoch ends in a smaller batch"
    prompts = set()
    for rows in (text.train, text.validation):
        for number in range(len(rows)):
            row = rows[number]
            prompt, answer, padding = row["tokens"].tensor_split([int(row["prompt"]), int(row["length"])])
            assert padding.tolist() == [text.tokenizer.vocabulary.eos] * len(padding)
            assert text.tokenizer.decode(prompt.tolist()).startswith("user\n\nWhat is ")
            assert len(text.tokenizer.decode(answer.tolist())) > 0
            prompts.add(int(row["prompt"]))
    assert len(prompts) > 3


@pytest.mark.parametrize("preset", ["verify", "verify-sft"])
def test_a_proof_has_steps_of_several_widths(preset: str) -> None:
    config = composed(f"--preset={preset}")
    text = corpus.load(config.data)
    rows = Objective(config.objective, text.tokenizer.vocabulary, config.seed, text.sft).training_rows(text.train)
    order: Order = Shuffled(len(rows), 11, config.seed)
    if isinstance(text.train, AnswerRows):
        order = BucketedOrder(order, text.train.lengths(np.arange(len(rows))), config.seed)
    steps = range(config.epochs * order.steps_per_epoch)
    assert len({rows.of_step(step, order.ids(step)[:, 1]).width for step in steps}) > 2


def test_the_data_decides_the_stage(tmp_path: Path) -> None:
    write_json(tmp_path / "metadata.json", {"format": "any", "kind": "chat"})
    names = {path: stages(MdlmConfig(data=DataConfig(path=path)))[0].name for path in (None, corpus.QUESTIONS)}
    assert names == {None: "pretrain", corpus.QUESTIONS: "sft"}
    best = {path: stages(MdlmConfig(data=DataConfig(path=path)))[0].best for path in (None, corpus.QUESTIONS)}
    assert best == {None: ("val/bits_per_byte", "min"), corpus.QUESTIONS: ("val/nll", "min")}
    assert stages(MdlmConfig(data=DataConfig(path=str(tmp_path))))[0].name == "sft"
    assert stages(MdlmConfig(data=DataConfig(path=str(tmp_path / "text.txt"))))[0].name == "pretrain"
