"""What `samestep sample` does: prompts become templates, templates become batches, and batches are divided among ranks.

Batches are made first, and a rank computes whole batches: the result is that of a single process, bit for bit, because
not even the shape of a matrix product depends on the number of ranks.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from samestep import Trained, World
from samestep.core.console import PlainConsole
from samestep.core.errors import print_error
from samestep.core.records import Json
from samestep.core.safe_files import write_text
from samestep.data.tokenizer.vocabulary import Tokenizer, Vocabulary
from samestep.models.transformer import Transformer, TransformerConfig
from samestep.parallel.precision import COMPUTE_DTYPES, autocast, cast_weights
from samestep.recipes.mdlm.animation import AnimatedText, RevealTrace, glyphs, html_page, show_passes
from samestep.recipes.mdlm.infilling import Template, answer_template, fill_templates, parse_template
from samestep.recipes.mdlm.pretrained import model_tokenizer
from samestep.recipes.mdlm.prompts import SampleOptions
from samestep.recipes.mdlm.sampling import Observer, SamplingConfig, SamplingPass, batches_by_shape


@dataclass(frozen=True)
class SampleRequest:
    """One text to generate: a sample of a prompt."""

    prompt: str
    sample: int
    template: Template
    id: int
    """The key of its noise, from the prompt's number and the sample's, so that other requests make no difference."""


@dataclass(frozen=True)
class SampledText:
    """The result of a request: plain data, since it may come from another rank."""

    request: int
    """Its index in the list of requests."""
    tokens: list[int]
    when: list[int]
    """The pass that revealed each token; empty without an animation."""
    probability: list[float]
    """The network's probability of each token; empty without an animation."""


def generate(trained: Trained, options: SampleOptions, world: World) -> list[dict[str, Json]]:
    """Sample each prompt `samples` times: one record per text, in order, on every rank.

    A record holds `prompt`, `sample`, the complete `text`, and as `written` the text of each gap.
    """
    html = options.html
    tokenizer = model_tokenizer(trained)
    requests = _requests(options, trained.config.sampling.length, tokenizer)
    batches = batches_by_shape([request.template.shape() for request in requests], trained.config.batch_size)
    if len(batches) < world.size:
        print_error(
            f"{world.size - len(batches)} of {world.size} ranks have nothing to do; a smaller --batch_size helps"
        )
    mine: list[SampledText] = []
    with world.together("writing"), ExitStack() as stack:
        module = load_network(trained, world.device, options.dtype)
        stack.enter_context(mixed_precision(module, trained.config, world.device, options.dtype))
        show = stack.enter_context(show_passes(tokenizer, PlainConsole())) if options.watch and world.is_main else None
        for batch in batches[world.rank :: world.size]:
            mine += _sample(
                module, requests, batch, trained.config, tokenizer.vocabulary, show, animate=html is not None
            )
    parts = world.gather([asdict(sampled) for sampled in mine])
    texts = sorted((SampledText(**fields) for part in parts for fields in part), key=lambda sampled: sampled.request)
    if html and world.is_main:
        animated = [_animated(requests, sampled, tokenizer) for sampled in texts]
        write_text(html, html_page(animated, *_headings(trained)))
    return [_record(requests[sampled.request], sampled, tokenizer) for sampled in texts]


def load_network(trained: Trained, device: torch.device, dtype: str | None = None) -> nn.Module:
    """The trained network on its device, in the type its weights are stored in or in `dtype`."""
    network: TransformerConfig = trained.config.model
    weights_dtype = getattr(torch, dtype) if dtype else next(iter(trained.weights().layout.values())).dtype
    return trained.build(lambda: Transformer(network), device, weights_dtype)


@contextmanager
def mixed_precision(module: nn.Module, config: Any, device: torch.device, dtype: str | None = None) -> Iterator[None]:
    """The mixed precision that the network was trained with; none on a CPU, or if a `dtype` is given."""
    is_plain = dtype is not None or device.type == "cpu"
    compute = None if is_plain else COMPUTE_DTYPES.get(config.distributed.mixed_precision)
    with autocast(device, compute), cast_weights(module, compute):
        yield


def _requests(options: SampleOptions, length: int, tokenizer: Tokenizer) -> list[SampleRequest]:
    requests = []
    for number, prompt in enumerate(options.texts()):
        if options.chat:
            template = answer_template(prompt, length, tokenizer)
        else:
            template = parse_template(prompt, length, tokenizer, options.gap)
        requests += [
            SampleRequest(prompt, sample, template, (number << 32) + sample) for sample in range(options.samples)
        ]
    return requests


def _sample(
    module: nn.Module,
    requests: Sequence[SampleRequest],
    batch: Sequence[int],
    config: Any,
    vocabulary: Vocabulary,
    show: Observer | None,
    animate: bool,
) -> list[SampledText]:
    """Sample one batch; `show` and the animation observe it."""
    options: SamplingConfig = config.sampling
    trace = RevealTrace(vocabulary.required_mask)
    observers: list[Observer] = [*([show] if show else []), *([trace] if animate else [])]

    def observe(current: SamplingPass) -> None:
        for observer in observers:
            observer(current)

    chosen = [requests[number] for number in batch]
    rows = fill_templates(
        module,
        [request.template for request in chosen],
        options,
        seed=config.seed,
        ids=[request.id for request in chosen],
        vocabulary=vocabulary,
        observe=observe if observers else None,
    )
    when, probability = trace.when.tolist(), trace.probability.tolist()
    return [
        SampledText(number, row, when[at] if animate else [], probability[at] if animate else [])
        for at, (number, row) in enumerate(zip(batch, rows))
    ]


def _record(request: SampleRequest, sampled: SampledText, tokenizer: Tokenizer) -> dict[str, Json]:
    text, gaps = request.template.read(sampled.tokens, tokenizer)
    return {"prompt": request.prompt, "sample": request.sample, "text": text, "written": gaps}


def _animated(requests: Sequence[SampleRequest], sampled: SampledText, tokenizer: Tokenizer) -> AnimatedText:
    shown = slice(requests[sampled.request].template.visible_length(sampled.tokens, tokenizer.vocabulary))
    tokens = sampled.tokens[shown]
    title = f"{sampled.request + 1} of {len(requests)}" if len(requests) > 1 else ""
    return AnimatedText(title, glyphs(tokens, tokenizer), tokens, sampled.when[shown], sampled.probability[shown])


def _headings(trained: Trained) -> tuple[str, str]:
    """Title and note of an animation."""
    options: SamplingConfig = trained.config.sampling
    blocks = f"blocks of {options.block_length}" if options.block_length else "one block"
    guidance = f", guidance {options.cfg_scale:g}" if options.cfg_scale else ""
    how = f"temperature {options.temperature:g}, {options.remasking.replace('_', ' ')} remasking, {blocks}{guidance}"
    return (
        f"{trained.config.name or trained.source.name} writes",
        f"masked diffusion: {how}, seed {trained.config.seed}",
    )
