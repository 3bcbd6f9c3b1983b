"""What `samestep sample` does: prompts become pages, pages batches, and batches are dealt to the ranks.

Batches are cut before they are dealt, and a rank computes a whole one: the result is that of a single process, bit for
bit, because not even the shape of a matrix product depends on the number of ranks.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from samestep.core.errors import UserError, print_error
from samestep.core.records import Json
from samestep.data.tokenizer.vocabulary import Tokenizer, Vocabulary
from samestep.models.transformer import Transformer, TransformerConfig
from samestep.recipes.mdlm.animation import AnimatedText, RevealTrace, glyphs, html_page, watching
from samestep.recipes.mdlm.infilling import Page, chat_page, fill_pages, page_of
from samestep.recipes.mdlm.pretrained import tokenizer_of
from samestep.recipes.mdlm.sampling import Look, Observer, SamplingConfig, alike
from samestep.train.learner.learner import COMPUTE
from samestep.train.pretrained.trained import Trained
from samestep.world.world import World

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class SampleRequest:
    """One text to write: a sample of a prompt."""

    prompt: str
    sample: int
    page: Page
    id: int
    """What its noise is keyed by: of the prompt's number and the sample's, so nothing asked for beside it counts."""


@dataclass(frozen=True)
class SampledText:
    """What became of a job: plain data, for it may come from another rank."""

    job: int
    tokens: list[int]
    when: list[int]
    """The pass that revealed each token; empty where no film is made, as is the next."""
    probability: list[float]


def generate(
    trained: Trained,
    prompts: Sequence[str],
    samples: int,
    *,
    world: World,
    dtype: str | None = None,
    gap: str | None = None,
    chat: bool = False,
    watch: bool = False,
    html: Path | None = None,
) -> list[dict[str, Json]]:
    """Each prompt written `samples` times: one record a text, in order, on every rank.

    A record holds `prompt`, `sample`, the whole `text`, and what was `written` in each gap.
    """
    tokenizer = tokenizer_of(trained)
    jobs = _jobs(prompts, samples, trained.config.sampling.length, tokenizer, gap, chat)
    batches = alike([job.page.shape() for job in jobs], trained.config.batch_size)
    if len(batches) < world.size:
        print_error(
            f"{world.size - len(batches)} of {world.size} ranks have nothing to do; a smaller --batch_size helps"
        )
    mine: list[SampledText] = []
    with world.together("writing"), ExitStack() as stack:
        module = load_network(trained, world.device, dtype)
        stack.enter_context(arithmetic(trained.config, world.device, dtype))
        show = stack.enter_context(watching(tokenizer, Console())) if watch and world.is_main else None
        for batch in batches[world.rank :: world.size]:
            mine += _write(module, jobs, batch, trained.config, tokenizer.vocabulary, show, film=html is not None)
    parts = world.gather([asdict(one) for one in mine])
    written = sorted((SampledText(**one) for part in parts for one in part), key=lambda one: one.job)
    if html and world.is_main:
        films = [_film(jobs, one, tokenizer) for one in written]
        html.write_text(html_page(films, *_headings(trained)), encoding="utf-8")
    return [_record(jobs[one.job], one, tokenizer) for one in written]


def load_network(trained: Trained, device: torch.device, dtype: str | None = None) -> nn.Module:
    """The trained network on its device, ready for use, in the type its weights are stored in or in another one."""
    network: TransformerConfig = trained.config.model
    if dtype is not None and dtype not in DTYPES:
        raise UserError(f"--dtype must be one of {', '.join(DTYPES)}, not {dtype!r}.")
    kind = DTYPES[dtype] if dtype else next(iter(trained.weights().layout.values())).dtype
    return trained.build(lambda: Transformer(network), device, kind)


def arithmetic(config: Any, device: torch.device, dtype: str | None = None) -> AbstractContextManager[Any]:
    """The mixed precision that the network was trained with, on devices that are made for it; none in a given type."""
    compute = COMPUTE.get(config.distributed.mixed_precision)
    if compute is None or dtype is not None or device.type == "cpu":
        return nullcontext()
    return torch.autocast(device.type, compute)


def _jobs(
    prompts: Sequence[str], samples: int, length: int, tokenizer: Tokenizer, gap: str | None, chat: bool
) -> list[SampleRequest]:
    if chat and gap is not None:
        raise UserError("Leave out --gap or --chat; an answer has no gaps.")
    jobs = []
    for number, prompt in enumerate(prompts):
        page = chat_page(prompt, length, tokenizer) if chat else page_of(prompt, length, tokenizer, gap)
        jobs += [SampleRequest(prompt, sample, page, (number << 32) + sample) for sample in range(samples)]
    return jobs


def _write(
    module: nn.Module,
    jobs: Sequence[SampleRequest],
    batch: Sequence[int],
    config: Any,
    vocabulary: Vocabulary,
    show: Observer | None,
    film: bool,
) -> list[SampledText]:
    """One batch, seen by those who watch."""
    options: SamplingConfig = config.sampling
    trace = RevealTrace(vocabulary.mask)
    observers: list[Observer] = [*([show] if show else []), *([trace] if film else [])]

    def observe(look: Look) -> None:
        for observer in observers:
            observer(look)

    chosen = [jobs[number] for number in batch]
    rows = fill_pages(
        module,
        [job.page for job in chosen],
        options,
        seed=config.seed,
        ids=[job.id for job in chosen],
        vocabulary=vocabulary,
        observe=observe if observers else None,
    )
    when, probability = trace.when.tolist(), trace.probability.tolist()
    return [
        SampledText(number, row, when[at] if film else [], probability[at] if film else [])
        for at, (number, row) in enumerate(zip(batch, rows))
    ]


def _record(job: SampleRequest, written: SampledText, tokenizer: Tokenizer) -> dict[str, Json]:
    text, gaps = job.page.read(written.tokens, tokenizer)
    return {"prompt": job.prompt, "sample": job.sample, "text": text, "written": gaps}


def _film(jobs: Sequence[SampleRequest], written: SampledText, tokenizer: Tokenizer) -> AnimatedText:
    seen = slice(jobs[written.job].page.visible(written.tokens, tokenizer.vocabulary))
    tokens = written.tokens[seen]
    title = f"{written.job + 1} of {len(jobs)}" if len(jobs) > 1 else ""
    return AnimatedText(title, glyphs(tokens, tokenizer), tokens, written.when[seen], written.probability[seen])


def _headings(trained: Trained) -> tuple[str, str]:
    """Title and note of a film."""
    options: SamplingConfig = trained.config.sampling
    blocks = f"blocks of {options.block_length}" if options.block_length else "one block"
    guidance = f", guidance {options.cfg_scale:g}" if options.cfg_scale else ""
    how = f"temperature {options.temperature:g}, {options.remasking.replace('_', ' ')} remasking, {blocks}{guidance}"
    return (
        f"{trained.config.name or trained.source.name} writes",
        f"masked diffusion: {how}, seed {trained.config.seed}",
    )
