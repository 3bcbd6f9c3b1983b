"""Generation: the tokens of a loop written by hand, whatever the batches, the padding and the ranks."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from adapter_toys import bench_of
from language_toys import TOKENS, logits_of, native, of_transformers
from samestep.core.errors import UserError
from samestep.models.decoding import left_pad
from samestep.models.log_probs import completion_log_probs
from samestep.train.api.generation import Completions, GenerationConfig, LocalGenerator, allowed_scores
from samestep.train.learner.draws import Draws
from samestep.train.record.stop import LeftStep
from samestep.world.world import World

EOS = (1, 4)
PROMPTS = [[3, 4, 5, 6, 7], [8], [9, 10, 11], [8], [2, 2], [12, 13, 14, 15], [16]]
LIMIT = 13
CONFIG = GenerationConfig(max_new_tokens=LIMIT, temperature=1.3)
NO_TOKENS = torch.zeros(0, dtype=torch.int64)


def ids_of(count: int) -> Tensor:
    return torch.tensor([[number % 2, 10 + number] for number in range(count)]).view(-1, 2)


def generator_of(config: GenerationConfig = CONFIG, world: World | None = None, **changes: Any) -> LocalGenerator:
    return LocalGenerator(config, Draws("write", seed=5), world or World.single(), **{"eos": EOS, **changes})


@torch.no_grad()
def by_hand(
    network: nn.Module, prompt: list[int], sample: Tensor, step: int = 3, config: GenerationConfig = CONFIG
) -> tuple[list[int], list[float]]:
    """One row, without cache or padding: the tokens and their log-probabilities."""
    tokens: list[int] = []
    found: list[float] = []
    while len(tokens) < config.max_new_tokens and not (tokens and tokens[-1] in EOS):
        logits = logits_of(network, torch.tensor([prompt + tokens]))[:, -1]
        allowed = allowed_scores(logits, config, NO_TOKENS)
        draws, position = Draws("write", seed=5), len(tokens)
        picked = draws.pick(allowed, step=step, ids=sample[None], position=position, temperature=config.temperature)
        tokens.append(int(picked))
        found.append(float((logits / (config.temperature or 1)).log_softmax(-1)[0, picked]))
    return tokens, found


def check(completions: Completions, wanted: list[tuple[list[int], list[float]]], tolerance: float) -> None:
    assert completions.to_lists() == [tokens for tokens, _ in wanted]
    assert completions.lengths.tolist() == [len(tokens) for tokens, _ in wanted]
    assert completions.finished.tolist() == [tokens[-1] in EOS for tokens, _ in wanted]
    for row, (tokens, found) in zip(completions.log_probs, wanted, strict=True):
        torch.testing.assert_close(row[: len(tokens)].tolist(), found, rtol=0, atol=tolerance)
    assert not completions.tokens[~completions.mask].any()
    assert not completions.log_probs[~completions.mask].any()


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "native": native,
    "llama": lambda: of_transformers("llama"),
    "gpt2": lambda: of_transformers("gpt2", initializer_range=0.3),
    "gemma": lambda: of_transformers("gemma"),
}
CONFIGS = {
    "sampled": CONFIG,
    "greedy": replace(CONFIG, temperature=0.0),
    "top k": replace(CONFIG, top_k=4),
    "top p": replace(CONFIG, top_p=0.6),
}


@pytest.mark.parametrize(
    ("name", "config"),
    [*(("native", config) for config in CONFIGS), *((name, "sampled") for name in list(NETWORKS)[1:])],
)
def test_tokens_and_log_probs_are_those_of_a_plain_loop(name: str, config: str) -> None:
    network, ids, chosen = NETWORKS[name]().double(), ids_of(len(PROMPTS)), CONFIGS[config]
    wanted = [by_hand(network, prompt, sample, config=chosen) for prompt, sample in zip(PROMPTS, ids)]
    lengths = [len(tokens) for tokens, _ in wanted]
    if config == "sampled":
        assert len(set(lengths)) > 1, "some end early, and not all at once"
    completions = generator_of(replace(chosen, rows_at_once=3))(network, PROMPTS, ids, step=3)
    check(completions, wanted, tolerance=1e-9 if name == "native" else 1e-5)


NATIVE = native().double()
WANTED = [by_hand(NATIVE, prompt, sample) for prompt, sample in zip(PROMPTS, ids_of(len(PROMPTS)))]


@given(
    rows=st.permutations(range(len(PROMPTS))).flatmap(lambda order: st.integers(0, 7).map(lambda n: order[:n])),
    at_once=st.integers(1, 8),
    check_every=st.integers(1, 20),
    pad=st.integers(0, TOKENS - 1),
)
@settings(max_examples=15, deadline=None, derandomize=True)
def test_a_row_does_not_depend_on_its_batch(rows: list[int], at_once: int, check_every: int, pad: int) -> None:
    generator = generator_of(replace(CONFIG, rows_at_once=at_once), check_every=check_every, pad=pad)
    completions = generator(NATIVE, [PROMPTS[row] for row in rows], ids_of(len(PROMPTS))[rows], step=3)
    assert completions.to_lists() == [WANTED[row][0] for row in rows]
    for row, found in zip(rows, completions.log_probs, strict=True):
        torch.testing.assert_close(found[: len(WANTED[row][1])].tolist(), WANTED[row][1], rtol=0, atol=1e-9)
    assert completions.tokens.shape == (len(rows), LIMIT)
    assert (completions.tokens[~completions.mask] == pad).all()


def test_every_part_of_the_key_counts() -> None:
    ids = ids_of(len(PROMPTS))

    def tokens(seed: int = 5, purpose: str = "write", step: int = 3, ids: Tensor = ids) -> list[list[int]]:
        generator = LocalGenerator(CONFIG, Draws(purpose, seed), World.single(), EOS)
        return generator(NATIVE, PROMPTS, ids, step=step).to_lists()

    usual = tokens()
    assert usual == tokens()
    assert usual[1] != usual[3], "equal prompts of different samples"
    others = [tokens(seed=6), tokens(purpose="rate"), tokens(step=4), tokens(ids=ids + torch.tensor([1, 0]))]
    assert all(other != usual for other in others)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
@pytest.mark.parametrize("name", ["native", "llama"])
def test_they_are_those_that_training_computes(name: str, dtype: torch.dtype, tolerance: float) -> None:
    network = NETWORKS[name]().to(dtype)
    completions = generator_of(replace(CONFIG, rows_at_once=3))(network, PROMPTS, ids_of(7), step=3)
    prompt, mask = left_pad(PROMPTS)
    assert mask is not None
    found = completion_log_probs(
        network, prompt, mask, completions.tokens, completions.mask, temperature=CONFIG.temperature
    )
    assert found.log_probs.dtype == completions.log_probs.dtype == dtype
    tolerance = 1e-5 if name == "llama" else tolerance
    torch.testing.assert_close(found.log_probs, completions.log_probs, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ["native", "llama", "llama, eager"])
def test_mixed_precision(name: str) -> None:
    network = native() if name == "native" else of_transformers("llama", "eager" if "eager" in name else "sdpa")
    prompt, mask = left_pad(PROMPTS)
    assert mask is not None
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        completions = generator_of()(network, PROMPTS, ids_of(7), step=3)
        found = completion_log_probs(
            network, prompt, mask, completions.tokens, completions.mask, temperature=CONFIG.temperature
        )
    assert found.log_probs.dtype == completions.log_probs.dtype == torch.float32
    torch.testing.assert_close(found.log_probs, completions.log_probs, rtol=0, atol=0.1)


def test_forbidden_tokens_are_never_sampled() -> None:
    forbidden = list(range(8, 20))
    completions = generator_of(forbidden=forbidden)(NATIVE, PROMPTS, ids_of(7), step=3)
    assert not {token for row in completions.to_lists() for token in row} & set(forbidden)
    assert (completions.log_probs[completions.mask] < 0).all()


def test_which_tokens_top_k_and_top_p_leave() -> None:
    shares = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.05, 0.15, 0.3, 0.5], [0.25, 0.25, 0.25, 0.25]])
    scores = (shares.log() * 2.0).double()  # of temperature 2

    def left(**changes: Any) -> list[list[int]]:
        kept = allowed_scores(scores, GenerationConfig(temperature=2.0, **changes), NO_TOKENS) > -torch.inf
        return [row.nonzero()[:, 0].tolist() for row in kept]

    everything = [0, 1, 2, 3]
    assert left() == [everything] * 3
    assert left(top_k=1)[:2] == [[0], [3]]
    assert left(top_k=9) == [everything] * 3
    assert left(top_p=0.4)[:2] == [[0], [3]], "the likeliest always, though it has more"
    assert left(top_p=0.6)[:2] == [[0, 1], [2, 3]]
    assert left(top_p=0.94)[:2] == [[0, 1, 2], [1, 2, 3]]
    assert left(top_k=2, top_p=0.6)[:2] == [[0], [3]], "shares of what top_k leaves"
    assert left(top_p=0.1)[2] == everything, "none of equals is preferred"


def test_a_stop_is_noticed_inside() -> None:
    asked: list[int] = []

    def check_stop() -> None:
        asked.append(1)
        if len(asked) == 3:
            raise LeftStep

    forever = GenerationConfig(max_new_tokens=40)
    with pytest.raises(LeftStep):
        generator_of(forever, eos=(), check_stop=check_stop, check_every=2)(NATIVE, PROMPTS, ids_of(7), step=0)


def test_it_ends_when_all_rows_have_ended() -> None:
    calls: list[int] = []
    handle = NATIVE.register_forward_pre_hook(lambda module, args: calls.append(1))
    short = [row for row, (tokens, _) in enumerate(WANTED) if len(tokens) < LIMIT - 3]
    longest = max(len(WANTED[row][0]) for row in short)
    generator_of(check_every=2)(NATIVE, [PROMPTS[row] for row in short], ids_of(len(PROMPTS))[short], step=3)
    handle.remove()
    assert longest <= len(calls) <= longest + 1


class CountReads(TorchDispatchMode):
    """How often the host asks for the values of a tensor, for which it would wait on a GPU."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("name", "prompts"),
    # not GPT-2 with prompts of one length, which transformers searches for padding
    [*((name, PROMPTS) for name in NETWORKS), ("native", [[3, 4], [5, 6]]), ("llama", [[3, 4], [5, 6]])],
)
def test_nothing_is_read_from_the_device_for_each_token(name: str, prompts: list[list[int]]) -> None:
    network, config = NETWORKS[name](), GenerationConfig(max_new_tokens=20, top_k=5, top_p=0.9)
    generator = generator_of(config, eos=(), check_every=5, forbidden=[7])
    with CountReads() as reads:
        generator(network, prompts, ids_of(len(prompts)), step=0)
    assert reads.count == 4, "whether all have ended, four times"


@pytest.mark.parametrize(
    ("prompts", "ids", "sentence"),
    [
        ([[1], []], ids_of(2), "a prompt is empty"),
        ([[1], [2]], ids_of(1), r"the ids of each prompt, \[2, 2\]"),
        ([[1] * 60], ids_of(1), "a prompt has 60 tokens and max_new_tokens is 13, but the network takes 64"),
    ],
)
def test_prompts_that_cannot_be_are_refused(prompts: list[list[int]], ids: Tensor, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        generator_of()(NATIVE, prompts, ids, step=0)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens must be a whole number of at least 1, not 0"),
        ({"temperature": -1.0}, "temperature must be a number of at least 0, not -1.0"),
        ({"top_k": 0}, "top_k must be a whole number of at least 1 or null, not 0"),
        ({"top_p": 0.0}, "top_p must be a number above 0 and at most 1, not "),
        ({"top_p": 1.5}, "top_p must be a number above 0 and at most 1, not "),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        GenerationConfig(**changes)


def test_a_bench_makes_one() -> None:
    bench = bench_of(World.single(), "ddp")
    generator = LocalGenerator.of(bench, "write", CONFIG, eos=EOS)
    assert generator.draws.seed == bench.config.seed
    assert generator.check_stop == bench.check_stop
    completions = generator(NATIVE, PROMPTS, ids_of(7), step=3)
    assert completions.to_lists() == generator(NATIVE, PROMPTS, ids_of(7), step=3).to_lists()
