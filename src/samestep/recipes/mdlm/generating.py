"""What `samestep sample` does: prompts become templates, templates become batches, and batches are divided among ranks.

A template is given text with gaps to fill in; a plain prompt is a template with one gap at its end.

"To be, or [[3]], that is"        a gap of three tokens
"To be, or ___, that is"          a gap of `max_new_tokens` tokens, with the marker ___
"To be, or "                      no gap: the text is continued by `max_new_tokens` tokens

Batches are made first, and a rank computes whole batches: the result is that of a single process, bit for bit, because
not even the shape of a matrix product depends on the number of ranks.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from samestep import Trained, UserError, World
from samestep.core.console import PlainConsole
from samestep.core.json_files import Json
from samestep.core.paths import check_new_file
from samestep.core.safe_files import write_text
from samestep.data.prepared.chats import ChatMessage, chat_prompt
from samestep.data.tokenizer.vocabulary import Tokenizer, Vocabulary
from samestep.kit.prompts import PromptOptions
from samestep.models.transformer import Transformer, TransformerConfig
from samestep.parallel.precision import autocast, cast_weights
from samestep.recipes.mdlm.animation import AnimatedText, RevealTrace, glyphs, html_page, show_passes
from samestep.recipes.mdlm.pretrained import model_tokenizer
from samestep.recipes.mdlm.sampling import (
    Observer,
    SamplingConfig,
    SamplingPass,
    batches_by_shape,
    fill,
    say_tokens_a_pass,
    until_end,
)
from samestep.train.trained.batch_inference import compute_dtype, in_order, say_idle

Dtype = Literal["float32", "bfloat16", "float16", "float64"]
"""Types that a network can be used in."""
NUMBERED = re.compile(r"\[\[(\d+)\]\]")
"""A gap with its number of tokens."""


@dataclass(frozen=True)
class SampleOptions(PromptOptions):
    """Which texts to generate, and how to show them."""

    prompt: str | None = None
    """Text to continue; [[8]] in it is a gap of 8 tokens to fill in, and then nothing is appended."""
    gap: str | None = None
    """A marker for gaps in place of [[8]], such as ___; each gets --max_new_tokens tokens."""
    chat: bool = False
    """The prompt is a question to an instruction-tuned model, and only its answer is printed."""
    watch: bool = False
    """Show the diffusion step by step."""
    html: Path | None = None
    """Write the diffusion as an animation to this .html file."""
    dtype: Dtype | None = None
    """Type of the network, in place of the type the weights are stored in."""

    def __post_init__(self) -> None:
        """Refuse options that do not go together, before the model is opened."""
        super().__post_init__()
        if self.chat and self.gap is not None:
            raise UserError("Leave out --gap or --chat; an answer has no gaps.")
        if self.html is not None:
            check_new_file("--html", self.html)


@dataclass(frozen=True)
class GivenText:
    """A part of a template that stays unchanged."""

    tokens: list[int]
    text: str


@dataclass(frozen=True)
class Template:
    """Parts in order: given text, and for each gap its number of tokens."""

    parts: Sequence[GivenText | int]

    def tokens(self, mask: int) -> list[int]:
        """The tokens of the template, with the mask token in its gaps."""
        return [token for part in self.parts for token in ([mask] * part if isinstance(part, int) else part.tokens)]

    def masked(self) -> list[bool]:
        """Which of its tokens are in a gap."""
        return [isinstance(part, int) for part in self.parts for _ in range(self._size(part))]

    def shape(self) -> tuple[int, int]:
        """The number of all tokens, and of masked ones."""
        return len(self.masked()), sum(self.masked())

    def read(self, tokens: Sequence[int], tokenizer: Tokenizer) -> tuple[str, list[str]]:
        """The text of a filled-in template, with the given parts unchanged; and the text of each gap.

        The text of a gap stops at its first end of a text or of a turn.
        """
        pieces, gaps, at = [], [], 0
        for part in self.parts:
            if isinstance(part, int):
                filled = until_end(list(tokens[at : at + part]), tokenizer.vocabulary)
                gaps.append(tokenizer.decode(filled))
                pieces.append(gaps[-1])
            else:
                pieces.append(part.text)
            at += self._size(part)
        return "".join(pieces), gaps

    def visible_length(self, tokens: Sequence[int], vocabulary: Vocabulary) -> int:
        """How many tokens to show: all, or those up to the end of the text if a gap comes last."""
        last = self.parts[-1]
        if not isinstance(last, int):
            return len(tokens)
        given = len(tokens) - last
        return min(len(tokens), given + len(until_end(list(tokens[given:]), vocabulary)) + 1)

    @staticmethod
    def _size(part: GivenText | int) -> int:
        return part if isinstance(part, int) else len(part.tokens)


def parse_template(prompt: str, length: int, tokenizer: Tokenizer, gap: str | None = None) -> Template:
    """The template of a prompt; with a marker `gap`, only that marks gaps, and numbers do not."""
    if gap == "":
        raise UserError("Give --gap a marker that stands for the missing text, such as ___.")
    # Split at a captured number, the odd pieces are the sizes of gaps.
    pieces = NUMBERED.split(prompt) if gap is None else re.split(f"({re.escape(gap)})", prompt)
    parts: list[GivenText | int] = []
    for number, piece in enumerate(pieces):
        if number % 2:
            if gap is None and int(piece) < 1:
                raise UserError(f"Give a gap at least one token, such as [[8]]; one of them is [[{piece}]].")
            parts.append(int(piece) if gap is None else length)
        elif piece:
            parts.append(GivenText(tokenizer.encode(piece), piece))
    return Template(parts if len(pieces) > 1 else [*parts, length])


def answer_template(prompt: str, length: int, tokenizer: Tokenizer) -> Template:
    """A template of a chat: the prompt as the user's message, and a gap for the answer, which alone is its text."""
    return Template([GivenText(chat_prompt(tokenizer, [ChatMessage("user", prompt)]), ""), length])


def fill_templates(
    module: nn.Module,
    templates: Sequence[Template],
    options: SamplingConfig,
    *,
    seed: int,
    ids: Sequence[int],
    vocabulary: Vocabulary,
    observers: Sequence[Observer] = (),
) -> list[list[int]]:
    """Fill in templates of one shape; noise is keyed by `ids`, and `options.max_new_tokens` is
    ignored."""

    def observe(current: SamplingPass) -> None:
        for observer in observers:
            observer(current)

    device = next(module.parameters()).device
    tokens = torch.tensor([template.tokens(vocabulary.required_mask) for template in templates], device=device)
    masked = torch.tensor([template.masked() for template in templates], device=device)
    keys = torch.tensor(list(ids), device=device)
    filled: list[list[int]] = fill(
        module, tokens, masked, options, seed=seed, ids=keys, vocabulary=vocabulary, observe=observe
    ).tolist()
    return filled


@dataclass(frozen=True)
class SampledText:
    """The result of a request: plain data, since it may come from another rank."""

    tokens: list[int]
    when: Sequence[int] = ()
    """The pass that revealed each token; empty without an animation."""
    probability: Sequence[float] = ()
    """The network's probability of each token; empty without an animation."""


def generate(trained: Trained, options: SampleOptions, world: World) -> list[dict[str, Json]]:
    """Sample each prompt `samples` times: one record per text, in order, on every rank.

    A record holds `prompt`, `sample`, the complete `text`, and as `written` the text of each gap.
    """
    tokenizer = model_tokenizer(trained)
    requests = options.requests()
    templates = requests.each(_templates(options, requests.prompts, trained.config.sampling.max_new_tokens, tokenizer))
    ids = [request.id for request in requests]
    batches = batches_by_shape([template.shape() for template in templates], trained.config.rows_at_once)
    say_idle(max(0, world.size - len(batches)), world)
    longest, most_masked = (max(numbers) for numbers in zip(*(template.shape() for template in templates)))
    trained.config.model.check_length(longest)
    say_tokens_a_pass(trained.config.sampling, most_masked, world)
    mine: list[tuple[int, SampledText]] = []
    with world.together("writing"), ExitStack() as stack:
        module = stack.enter_context(open_network(trained, world.device, options.dtype))
        show = stack.enter_context(show_passes(tokenizer, PlainConsole())) if options.watch and world.is_main else None
        for batch in batches[world.rank :: world.size]:
            trace = RevealTrace(tokenizer.vocabulary.required_mask) if options.html is not None else None
            rows = fill_templates(
                module,
                [templates[number] for number in batch],
                trained.config.sampling,
                seed=trained.config.seed,
                ids=[ids[number] for number in batch],
                vocabulary=tokenizer.vocabulary,
                observers=[observer for observer in (show, trace) if observer is not None],
            )
            columns = (rows, trace.when.tolist(), trace.probability.tolist()) if trace is not None else (rows,)
            mine += zip(batch, (SampledText(*found) for found in zip(*columns)))
    gathered = in_order(world.gather([(number, asdict(sampled)) for number, sampled in mine]))
    texts = [SampledText(**fields) for fields in gathered]
    if options.html and world.is_main:
        animated = [_animated(templates, number, sampled, tokenizer) for number, sampled in enumerate(texts)]
        write_text(options.html, html_page(animated, *_headings(trained)))
    read = (template.read(sampled.tokens, tokenizer) for template, sampled in zip(templates, texts, strict=True))
    return requests.records({"text": text, "written": gaps} for text, gaps in read)


@contextmanager
def open_network(trained: Trained, device: torch.device, dtype: str | None = None) -> Iterator[nn.Module]:
    """The trained network on its device, in the type its weights are stored in and with the mixed precision that it was
    trained with; or all in `dtype`."""
    network: TransformerConfig = trained.config.model
    weights_dtype = getattr(torch, dtype) if dtype else next(iter(trained.weights().layout.values())).dtype
    module = trained.build(lambda: Transformer(network), device, weights_dtype)
    compute = None if dtype else compute_dtype(trained.config, device)
    with autocast(device, compute), cast_weights(module, compute):
        yield module


def _templates(options: SampleOptions, prompts: Sequence[str], length: int, tokenizer: Tokenizer) -> list[Template]:
    if options.chat:
        return [answer_template(prompt, length, tokenizer) for prompt in prompts]
    return [parse_template(prompt, length, tokenizer, options.gap) for prompt in prompts]


def _animated(templates: Sequence[Template], number: int, sampled: SampledText, tokenizer: Tokenizer) -> AnimatedText:
    shown = slice(templates[number].visible_length(sampled.tokens, tokenizer.vocabulary))
    tokens = sampled.tokens[shown]
    title = f"{number + 1} of {len(templates)}" if len(templates) > 1 else ""
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
