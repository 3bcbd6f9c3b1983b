"""What a run does: settings that it gets from its data or its pretrained model, resolved before it is recorded; and its
one stage, which fits a network to rows of text or to the answers of chats."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from samestep import Average, Bench, Bucketed, Feed, Stage, Tick, Trained, UserError, Weighted, World
from samestep.core.json_files import write_json
from samestep.data.order import Order
from samestep.data.pydoc_topics import BUILT_IN_TEXT, PROSE
from samestep.data.records.mixture import shown
from samestep.data.token_rows import AnswerRows, TokenRows
from samestep.data.tokenizer.vocabulary import ByteTokenizer, Tokenizer, Vocabulary
from samestep.models.hub import find_model, resolve_model
from samestep.models.hub_download import hub_model
from samestep.models.transformer import Transformer, TransformerConfig
from samestep.recipes.mdlm.config import PRESETS, MdlmConfig
from samestep.recipes.mdlm.corpus import Corpus, DataConfig, data_tokenizer, holds_chats, load, row_length
from samestep.recipes.mdlm.held_out import CORPUS
from samestep.recipes.mdlm.objective import Objective, nll_metrics, pair_rows
from samestep.recipes.mdlm.pretrained import (
    copy_tokenizer_files,
    is_published,
    model_code,
    read_config,
    resolve_network,
)
from samestep.recipes.mdlm.pt_files import EpochFiles, FitWithEpochFiles
from samestep.recipes.mdlm.published_code import CODE, record_code
from samestep.recipes.mdlm.tokenizer import load_tokenizer
from samestep.recipes.mdlm.writing import Writer, WritingFit
from samestep.train.learner.optimizer import OptimSettings
from samestep.train.record.config import named_source
from samestep.train.trained.trained_model import TOKENIZER, open_trained
from samestep.train.weights.sources import is_checkpoint, is_run

ROUND = 64
"""An embedding that is rounded up for speed is rounded up to a multiple of this."""
COMPARED_TOKENS = 200
"""How many tokens are decoded to compare two tokenizers."""
MEASURED_STEPS = 1024
"""In how many steps padding is measured for the banner."""
DESCRIBED = {
    "None": f"{BUILT_IN_TEXT} (the text inside Python)",
    PROSE: f"{PROSE} (sentences of the text inside Python)",
}
"""What the banner says of built-in data."""
WEIGHT_FILES = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")


def resolve_config(config: MdlmConfig) -> MdlmConfig:
    """The configuration with the network of the pretrained model, or with a fresh network that fits the data."""
    network = _initial_network(config)
    if network is None:
        return replace(config, model=_fit_to_data(config.model, config.data))
    preset = TransformerConfig(**PRESETS.get(config.preset, {}).get("model", {}))
    return replace(config, model=resolve_network(str(config.init_from), network, config.model, preset))


def _initial_network(config: MdlmConfig) -> TransformerConfig | None:
    """The network that training begins with; of a model of the Hub no weights are needed yet."""
    if hub_model(config.init_from or ""):
        return read_config(resolve_model(str(config.init_from), weights=False)).network
    initial = initial_model(config, World.single())
    return None if initial is None else initial.config.model


def initial_model(config: MdlmConfig, world: World) -> Trained | None:
    """The model that `init_from` names; None if weights are fresh, or in a file that holds nothing but weights.
    Collective, since it may be downloaded.

    Opening it may check every byte of a checkpoint: open it once, and pass it on.
    """
    if not config.init_from:
        return None
    source = find_model(config.init_from, world)
    if not source.exists() and source.suffix in WEIGHT_FILES:
        return None  # opening the weights reports that
    if not source.exists():
        name = config.init_from if "/" in config.init_from else f"GSAI-ML/{config.init_from}"
        raise UserError(
            f"There is no {source} here; name the folder of a published model, a run, or a model of the Hub, such as "
            f"{name}."
        )
    if is_published(source) or is_run(source) or is_checkpoint(source):
        return open_trained(str(source))
    return None


def _fit_to_data(network: TransformerConfig, data: DataConfig) -> TransformerConfig:
    """The fresh network with the vocabulary of its data, and long enough for its rows."""
    size = data_tokenizer(data).vocabulary.size
    rows = network.embedding_size
    return replace(
        network,
        vocab_size=size,
        embedding_size=rows if rows is None or rows >= size else -(-size // ROUND) * ROUND,
        max_sequence_length=max(network.max_sequence_length, row_length(data)),
    )


def check_corpus(config: MdlmConfig, text: Corpus, initial: Trained | None) -> None:
    """Refuse data in other tokens than those of the pretrained model, or that does not fit into the network."""
    if initial is not None and not _same_tokens(initial, text.tokenizer):
        raise UserError(
            f"{text.name} has other tokens than {config.init_from}; prepare the text with the model's tokenizer: "
            f"samestep data prepare TEXT --tokenizer {config.init_from}"
        )
    text.check_fits(config.model.vocab_size, config.model.embeddings, config.model.max_sequence_length)


def _same_tokens(initial: Trained, ours: Tokenizer) -> bool:
    theirs = load_tokenizer(initial.tokenizer)
    if is_published(initial.source) and isinstance(theirs, ByteTokenizer):  # it came without a tokenizer
        return read_config(initial.source).ids["mask_token_id"] == ours.vocabulary.mask
    return _signature(theirs) == _signature(ours)


def _signature(tokenizer: Tokenizer) -> tuple[Vocabulary, list[str]]:
    """The vocabulary and the first tokens as text, to compare tokenizers by."""
    known = range(min(COMPARED_TOKENS, tokenizer.vocabulary.size))
    return tokenizer.vocabulary, [tokenizer.decode([token]) for token in known]


def stages(config: MdlmConfig) -> list[Stage]:
    """Pre-training on running text, or supervised fine-tuning on chats, depending on the data."""
    name, metric = ("sft", "val/nll") if holds_chats(config.data) else ("pretrain", "val/bits_per_byte")
    return [Stage(name, _build, validate=_validate, best=(metric, "min"), finish=_finish, unit="tokens")]


def describe(config: MdlmConfig) -> dict[str, str]:
    """The dataset and the network, for the banner."""
    network = config.model
    shape = f"{network.n_layers} layers of width {network.d_model}"
    source = named_source(config)
    return {
        "dataset": DESCRIBED.get(str(config.data.path)) or shown(config.data.path),
        "model": f"{source} ({shape})" if source else shape,
        "vocabulary size": f"{network.vocab_size:,}",
    }


def _build(bench: Bench) -> WritingFit:
    config: MdlmConfig = bench.config
    text = load(config.data)
    # A resumed run has its own copy of the tokenizer, with the other tokenizer files of the pretrained model.
    initial = None if bench.resumed else initial_model(config, bench.world)
    check_corpus(config, text, initial)
    objective = Objective(config.objective, text.tokenizer.vocabulary, config.seed, text.sft)
    feed = _training_feed(bench, text, objective)
    if bench.world.is_main:  # after the feed has checked the data, which also computed its hash
        write_json(bench.artifact(CORPUS), text.describe())
        if not bench.resumed:
            if initial is not None:
                copy_tokenizer_files(initial.tokenizer, bench.artifact(TOKENIZER))
                bench.banner["code"] = record_code(model_code(initial), bench.artifact(CODE))
            text.tokenizer.save(bench.artifact(TOKENIZER))
    learner = bench.learner(lambda: Transformer(config.model))
    fit = partial(FitWithEpochFiles, files=_epoch_files(bench, text)) if config.pt_checkpoints else WritingFit
    return fit(
        learner,
        feed,
        objective.loss,
        validation=bench.evaluation_feed(text.validation, count=objective.measure_count),
        measure=objective.measure,
        derive=lambda found: nll_metrics(found["nll"], text.validation_bytes_per_token),
        average=Average(learner, config.ema_decay) if config.ema_decay else None,
        change=pair_rows if config.objective.antithetic else None,
        writer=Writer(bench, text),
    )


def _training_feed(bench: Bench, text: Corpus, objective: Objective) -> Feed:
    rows = objective.training_rows(text.train)
    if not isinstance(text.train, AnswerRows):
        weighted = Weighted(text.weights) if text.weights is not None else None
        return bench.feed(rows, order=weighted, count=objective.count)
    order = Bucketed(text.train.lengths(np.arange(len(rows)))) if bench.config.bucketed else None
    feed = bench.feed(rows, order=order, count=objective.count)
    bench.banner["padding"] = describe_padding(text.train, rows, feed.order)
    return feed


def describe_padding(chats: AnswerRows, rows: TokenRows, order: Order) -> str:
    """How much of an epoch is padding, measured in its first steps. `rows` are the chats as they are trained on."""
    tokens = padded = prompts = 0
    for step in range(min(order.steps_per_epoch, MEASURED_STEPS)):
        indices = order.ids(step)[:, 1]
        tokens += chats.lengths(indices).sum()
        prompts += chats.prompts(indices).sum()
        padded += len(indices) * rows.of_step(step, indices).width
    padding = padded - tokens
    return f"{padding / padded:.1%} of all tokens, {padding / (padded - prompts):.1%} of those that count as answer"


def _validate(task: WritingFit, tick: Tick) -> Mapping[str, float]:
    return task.validate(tick)  # of a subclass too, unlike `Fit.validate`


def _epoch_files(bench: Bench, text: Corpus) -> EpochFiles:
    config: MdlmConfig = bench.config
    if config.optimizer != "adamw":
        raise UserError("pt_checkpoints=true writes AdamW's moments: use optimizer=adamw, or leave pt_checkpoints out")
    plan = bench.plan(len(text.train))
    return EpochFiles(
        bench.rundir.path,
        metric="val/nll",
        rate=plan.schedule(config),
        optim=OptimSettings.of(config),
        extra={"vocab_size": config.model.vocab_size, "mask_token": text.tokenizer.vocabulary.mask},
        continued=Path(config.continue_from) if config.continue_from and not bench.resumed else None,
    )


def _finish(task: WritingFit, bench: Bench) -> None:
    """Write the last epoch's file, and print a text, or the answer to the prompt of a validation row."""
    if isinstance(task, FitWithEpochFiles):
        task.write_pending()
    assert task.writer is not None
    for sample in task.writer.texts(task, min(1, bench.sample_count)):
        shown_prompt = f"\nprompt:\n{sample.prompt}\n" if task.writer.answers else ""
        bench.screen.print(f"{shown_prompt}\n{task.writer.name}:\n{sample.text}\n")
