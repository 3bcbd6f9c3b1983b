"""The one stage of the recipe: fit a network to rows of text, or to the answers of chats."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from samestep import Average, Bench, Fit, Stage, Tick, Trained, UserError
from samestep.core.paths import expand_home
from samestep.core.records import write_json
from samestep.data.prepared import METADATA
from samestep.data.tokenizer.vocabulary import read_record
from samestep.models.transformer import Transformer
from samestep.recipes.mdlm import corpus
from samestep.recipes.mdlm.config import MdlmConfig
from samestep.recipes.mdlm.corpus import QUESTIONS, Corpus, DataConfig, load_questions
from samestep.recipes.mdlm.objective import Objective, nll_metrics
from samestep.recipes.mdlm.pretrained import copy_tokenizer_files
from samestep.recipes.mdlm.pt_files import EpochFiles, FitWithEpochFiles
from samestep.recipes.mdlm.resolve import check_corpus, initial_model
from samestep.recipes.mdlm.sampling import sample, until_end
from samestep.train.learner.optimizer import OptimSettings
from samestep.train.record.config import named_source
from samestep.train.trained.trained_model import TOKENIZER

PRETRAIN, SFT = "pretrain", "sft"


def stages(config: MdlmConfig) -> list[Stage]:
    """Pre-training on running text, or supervised fine-tuning on chats, depending on the data."""
    name, metric = (SFT, "val/nll") if holds_chats(config.data) else (PRETRAIN, "val/bits_per_byte")
    return [Stage(name, build, validate=validate, best=(metric, "min"), finish=finish, unit="tokens")]


def holds_chats(data: DataConfig) -> bool:
    """Whether the data is prompts with answers, judged by a small file."""
    if data.path is None or data.path == QUESTIONS:
        return data.path is not None
    return read_record(expand_home(data.path) / METADATA).get("kind") == "chat"


def describe(config: MdlmConfig) -> dict[str, str]:
    """The dataset and the network, for the banner."""
    network = config.model
    shape = f"{network.n_layers} layers of width {network.d_model}, {network.vocab_size:,} tokens"
    source = named_source(config)
    return {
        "dataset": config.data.path or "pydoc_data.topics (the text inside Python)",
        "model": f"{source} ({shape})" if source else shape,
    }


def load(data: DataConfig) -> Corpus:
    """The data that a configuration names."""
    return load_questions(data) if data.path == QUESTIONS else corpus.load(data)


def build(bench: Bench) -> Fit:
    """One network, fitted to the data."""
    config: MdlmConfig = bench.config
    text = load(config.data)
    # A resumed run has its own copy of the tokenizer.
    initial = None if bench.resumed else initial_model(config)
    check_corpus(config, text, initial)
    objective = Objective(config.objective, text.tokenizer.vocabulary, config.seed, text.sft)
    feed = bench.feed(text.train, count=objective.count)
    if bench.world.is_main:  # after the feed has checked the data, which also computed its hash
        write_json(bench.artifact("corpus.json"), text.describe())
        if not bench.resumed:
            _keep_tokenizer(initial, text, bench.artifact(TOKENIZER))
    learner = bench.learner(lambda: Transformer(config.model))
    fit = partial(FitWithEpochFiles, files=_epoch_files(bench, text)) if config.pt_checkpoints else Fit
    return fit(
        learner,
        feed,
        objective.loss,
        validation=bench.evaluation_feed(text.validation, count=objective.measure_count),
        measure=objective.measure,
        derive=lambda found: nll_metrics(found["nll"], text.validation_bytes_per_token),
        average=Average(learner, config.ema_decay) if config.ema_decay else None,
    )


def _keep_tokenizer(initial: Trained | None, text: Corpus, folder: Path) -> None:
    """Write the run's own copy of the tokenizer, with the other tokenizer files of the pretrained model."""
    if initial is not None:
        copy_tokenizer_files(initial.tokenizer, folder)
    text.tokenizer.save(folder)


def validate(task: Fit, tick: Tick) -> Mapping[str, float]:
    """The bound over all validation rows."""
    return task.validate(tick)


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


def finish(task: Fit, bench: Bench) -> None:
    """Write the last epoch's file, if files are enabled, and show a few samples."""
    if isinstance(task, FitWithEpochFiles):
        task.write_pending()
    if bench.config.samples_at_end:
        _show_samples(task, bench)


def _show_samples(task: Fit, bench: Bench) -> None:
    """Sample text without a prompt, or answers to the first prompts of the validation rows."""
    config: MdlmConfig = bench.config
    text = load(config.data)
    vocabulary, decode = text.tokenizer.vocabulary, text.tokenizer.decode
    for number in range(config.samples_at_end):
        row = text.validation[number % len(text.validation)]
        prompt = row["tokens"][: int(row["prompt"])]
        longest = config.model.max_sequence_length - len(prompt)
        options = replace(config.sampling, length=min(config.sampling.length, longest))
        ids = torch.tensor([number], device=bench.world.device)
        generating = bench.world.activity.doing("generate")
        with generating, task.weights_in_use(), task.learner.inference() as module:
            given = prompt[None].to(bench.world.device)
            tokens = sample(module, given, options, seed=config.seed, ids=ids, vocabulary=vocabulary)[0].tolist()
        sampled = decode(until_end(tokens[len(prompt) :], vocabulary))
        shown_prompt = f"\nprompt:\n{decode(prompt.tolist())}\n" if text.sft else ""
        bench.screen.print(f"{shown_prompt}\n{'answer' if text.sft else 'sampled text'}:\n{sampled}\n")
