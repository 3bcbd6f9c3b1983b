"""The network of the lens against a plain written-out computation, in float64."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from language_toys import TOKENS, native, of_transformers
from samestep import Lora, UserError, noise
from samestep.data.feed import MicroBatches
from samestep.parallel.blocks import checkpoint_activations, find_blocks
from samestep.recipes.lens.network import OWN, Lens
from samestep.recipes.lens.parts import KeyedDraws, LensShape, straight_through
from samestep.train.learner.lora import to_type
from samestep.world.world import World
from toys import default_dtype, learner_of

PROMPT = [3, 5], [7]
T, ROWS, COLUMNS, LAYER = 3, 4, 6, 1
SHAPE = LensShape(layer=LAYER, t_text=T, bos=2, seed=11)


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    with default_dtype(torch.float64):
        yield


def lens_of(shape: LensShape = SHAPE, model: nn.Module | None = None, moved: bool = True) -> Lens:
    """With trained parts that are not where they begin, unless they are to be."""
    lens = Lens(model or native(n_layers=3), shape, PROMPT)
    generator = torch.Generator().manual_seed(8)
    if moved:
        with torch.no_grad():
            for parameter in lens.parameters():
                if parameter.requires_grad:
                    parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return lens


def batch_of(model: nn.Module | None = None, tau: float = 0.7, rows: int = ROWS) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(4)
    width = 16
    return {
        "tokens": torch.randint(0, TOKENS, (rows, COLUMNS), generator=generator),
        "position": torch.arange(rows) % COLUMNS,
        "activation": torch.randn(rows, width, generator=generator),
        "other": torch.randn(rows, width, generator=generator),
        "tau": torch.full((rows,), tau),
        "ids": torch.stack((torch.full((rows,), 3), torch.arange(rows)), 1),
        "live": torch.ones(rows, dtype=torch.bool),
    }


def through_blocks(model: Any, vectors: Tensor, first: int, last: int) -> Tensor:
    """Blocks of the native network, called by hand."""
    from samestep.models.transformer import rotary_tables

    positions = torch.arange(vectors.shape[1])
    cos, sin = rotary_tables(positions, model.config.head_size, model.config.rope_theta, vectors)
    for block in model.transformer.blocks[first:last]:
        vectors = block(vectors, cos, sin)
    return vectors


def read_out(model: Any, hidden: Tensor) -> Tensor:
    return model.transformer.ff_out(model.transformer.ln_f(hidden))


def terms_by_hand(lens: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Row by row, whole rows each time, with loops."""
    found: dict[str, list[Tensor]] = {name: [] for name in ("kl", "lm", "entropy", "mse", "square")}
    model, embed = lens.model, lens.model.transformer.wte.weight
    decoder, encoder = lens.decoder.model or model, lens.encoder.model or model
    layers = model.config.n_layers

    def text_about(activation: Tensor, ids: Tensor, tau: Tensor, purpose: str) -> tuple[Tensor, Tensor, list[Tensor]]:
        slot = lens.decoder.projection(activation)
        vectors = torch.cat((lens.decoder.prompt[:2], slot[None], lens.decoder.prompt[2:]))
        tokens, logs, mixed = [], [], []
        for position in range(T):
            logits = read_out(decoder, through_blocks(decoder, vectors[None], 0, layers))[0, -1]
            key = (11, noise.purpose(purpose), int(ids[0]), int(ids[1]), position)
            gumbel = noise.gumbel(*key, torch.arange(TOKENS))
            soft = torch.softmax((logits + gumbel) / tau, 0)
            hard = torch.zeros(TOKENS)
            hard[(logits + gumbel).argmax()] = 1
            mixture = hard + soft - soft.detach()
            tokens.append((logits + gumbel).argmax())
            logs.append(torch.log_softmax(logits, 0))
            mixed.append(mixture @ embed)
            vectors = torch.cat((vectors, mixed[-1][None]))
        read = through_blocks(encoder, torch.stack([embed[2], *mixed])[None], 0, LAYER + 1)[0, -1]
        return lens.encoder.projection(read), torch.stack(tokens), logs

    for row in range(len(batch["ids"])):
        activation, other, ids, tau = (batch[name][row] for name in ("activation", "other", "ids", "tau"))
        rebuilt, tokens, logs = text_about(activation, ids, tau, "lens")
        other_rebuilt, _, _ = text_about(other, ids, tau, "lens/other")
        delta = other - other_rebuilt
        delta = delta.detach() if lens.shape.stop_gradient else delta
        at = int(batch["position"][row])
        below = through_blocks(model, embed[batch["tokens"][row]][None], 0, LAYER + 1)
        predictions = []
        for value in (activation, rebuilt + delta):
            hidden = torch.cat((below[:, :at], value[None, None], below[:, at + 1 :]), 1)
            logits = read_out(model, through_blocks(model, hidden, LAYER + 1, layers))[0, at]
            predictions.append(torch.log_softmax(logits, 0))
        found["kl"].append((predictions[0].exp() * (predictions[0] - predictions[1])).sum())
        before = torch.cat((torch.tensor([2]), tokens[:-1]))
        fluent = torch.log_softmax(model(before[None])[0], 1).detach()
        found["lm"].append(sum((p.exp() * (p - q)).sum() for p, q in zip(logs, fluent)) / T)
        found["entropy"].append(-sum((p.exp() * p).sum() for p in logs) / T)
        found["square"].append(activation.square().sum())
        found["mse"].append((activation - rebuilt).square().sum() / activation.square().sum())
    return {name: torch.stack(values) for name, values in found.items()}


def gradients_of(lens: Lens, terms: dict[str, Tensor]) -> dict[str, Tensor]:
    lens.zero_grad()
    total = sum(
        weight * terms[name].sum() for name, weight in (("kl", 1.0), ("lm", 0.5), ("entropy", -0.3), ("mse", 2.0))
    )
    total.backward()
    found = {name: p.grad for name, p in lens.named_parameters() if p.requires_grad}
    assert not [name for name, gradient in found.items() if gradient is None], "every trained part gets a gradient"
    return found


def same(actual: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float = 1e-9) -> None:
    assert actual.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(actual[name], value, rtol=tolerance, atol=tolerance, msg=lambda m: f"{name}: {m}")  # noqa: B023


@pytest.mark.parametrize("kv_cache", [True, False])
@pytest.mark.parametrize("stop_gradient", [True, False])
@pytest.mark.parametrize("kind", ["full", "frozen"])
def test_terms_and_gradients_are_those_by_hand(kind: Any, stop_gradient: bool, kv_cache: bool) -> None:
    shape = replace(SHAPE, decoder=kind, encoder=kind, stop_gradient=stop_gradient, kv_cache=kv_cache)
    lens = lens_of(shape)
    terms, wanted = lens(batch_of()), terms_by_hand(lens, batch_of())
    same(terms, wanted)
    assert (terms["kl"] > 1e-4).all()
    same(gradients_of(lens, terms), gradients_of(lens, wanted))


def test_the_straight_through_gradient_of_one_token_by_hand() -> None:
    """d mixture_i / d logits_j = soft_i (delta_ij - soft_j) / tau, whatever token was drawn."""
    logits = torch.tensor([[0.3, -1.0, 0.8, 0.1]], requires_grad=True)
    gumbel, tau = torch.tensor([[0.2, 0.1, -2.0, 0.4]]), torch.tensor([0.5])
    tokens, mixture = straight_through(logits, gumbel, tau)
    assert tokens.tolist() == [int((logits + gumbel).argmax())]
    assert mixture.tolist() == [[1.0, 0.0, 0.0, 0.0]]
    soft = torch.softmax((logits.detach() + gumbel) / 0.5, 1)[0]
    weights = torch.tensor([1.0, -2.0, 0.5, 3.0])
    (mixture @ weights).backward()
    wanted = (torch.diag(soft) - torch.outer(soft, soft)) @ weights / 0.5
    torch.testing.assert_close(logits.grad[0], wanted)


def test_the_gradient_of_the_encoder_against_finite_differences() -> None:
    lens = lens_of()
    batch = batch_of()
    mixtures = torch.softmax(torch.randn(ROWS, T, TOKENS, generator=torch.Generator().manual_seed(1)), -1)
    mixtures.requires_grad_()
    loss = lambda given: (lens.rebuild(given) - batch["activation"]).square().sum()  # noqa: E731
    (gradient,) = torch.autograd.grad(loss(mixtures), mixtures)
    along = torch.randn(mixtures.shape, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        measured = (loss(mixtures + 1e-5 * along) - loss(mixtures - 1e-5 * along)) / 2e-5
    torch.testing.assert_close((gradient * along).sum(), measured, rtol=1e-6, atol=1e-8)


def test_a_perfect_reconstruction_changes_nothing() -> None:
    """The other activation lacks nothing either, or as much as this one."""
    lens = lens_of()
    batch = batch_of()
    kl = lens._behaviour(batch, batch["activation"], batch["activation"])
    assert torch.equal(kl, torch.zeros(ROWS))
    batch["other"] = batch["activation"]
    lens.shape = replace(SHAPE, stop_gradient=False)
    found = lens(batch)
    assert (found["kl"] > 0).all(), "the noise of the other text is its own"


def test_what_it_begins_with() -> None:
    """Projections are the identity, the prompt is that of its tokens, copies compute what the model does."""
    lens = lens_of(moved=False)
    activation = batch_of()["activation"]
    assert torch.equal(lens.decoder.projection(activation), activation)
    assert torch.equal(lens.encoder.projection(activation), activation)
    assert torch.equal(lens.decoder.prompt, lens.model.transformer.wte(torch.tensor([3, 5, 7])))
    text = torch.tensor([[4, 9, 1]])
    read = lens._stream.leaving(torch.tensor([[2, 4, 9, 1]]), LAYER)[:, -1]
    torch.testing.assert_close(lens.rebuild(text), read)
    frozen = lens_of(replace(SHAPE, decoder="frozen", encoder="frozen"), moved=False)
    same(lens(batch_of()), frozen(batch_of()))


@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "gemma3", "qwen3"])
@pytest.mark.parametrize("decoder", ["full", "lora"])
def test_models_of_transformers_train_in_every_part(kind: str, decoder: Any) -> None:
    named = "n_layer" if kind == "gpt2" else "num_hidden_layers"
    attention = "eager" if kind == "gemma2" else "sdpa"
    shape = replace(SHAPE, decoder=decoder, encoder=decoder, trains_head=True)
    lens = lens_of(shape, of_transformers(kind, attention, **{named: 3}).double())
    batch = batch_of()
    found = gradients_of(lens, lens(batch))
    assert all(gradient.abs().sum() > 0 for gradient in found.values())
    again = of_transformers(kind, attention, **{named: 3}).double()
    uncached = lens_of(replace(shape, kv_cache=False), again)
    same(uncached(batch), lens(batch), 1e-4)


def test_a_layer_that_is_frozen_is_one_module() -> None:
    lens = lens_of()
    own = {id(p) for p in lens.model.parameters()}
    assert all(id(p) in own for p in lens.parameters() if not p.requires_grad)
    assert all(id(p) not in own for p in lens.parameters() if p.requires_grad)
    trained = {name for name, p in lens.named_parameters() if p.requires_grad}
    assert not [name for name in trained if ".wte." in name or name.endswith("transformer.ff_out.weight")]
    assert not [name for name in trained if name.startswith("encoder.model.transformer.blocks.2")]
    assert len(find_blocks(lens)) == 3 + 3 + 2


def test_dropout_of_a_published_model_does_not_act() -> None:
    lens = lens_of(SHAPE, of_transformers("gpt2", n_layer=3, resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5).double())
    lens.train()
    assert lens.training
    same(lens(batch_of()), lens(batch_of()))


@pytest.mark.parametrize("base", [torch.float32, torch.bfloat16])
def test_in_mixed_precision_it_learns(base: torch.dtype) -> None:
    with default_dtype(torch.float32):
        lens = lens_of(replace(SHAPE, encoder="lora"), native(n_layers=3).to(base), moved=False)
        to_type(lens, torch.float32)
        learner = learner_of(lens, World.single(), "ddp", mixed_precision="bf16", rate=lambda _: 0.01)
        batch = {name: value.float() if value.is_floating_point() else value for name, value in batch_of().items()}
        losses = []
        for _ in range(12):
            with learner.inference() as network:
                losses.append(float(network(batch)["mse"].mean()))
            held = MicroBatches(0, [batch], {"rows": float(ROWS)}, batch["ids"].numpy(), [(0, ROWS)])
            learner.update(held, lambda network, batch: {"mse": network(batch)["mse"]})
    assert {p.dtype for p in lens.model.transformer.wte.parameters()} == {base}
    assert losses[-1] < 0.9 * losses[0], losses


def test_which_parts_are_trained() -> None:
    none = {"trains_decoder_projection": False, "trains_prompt": False, "trains_encoder_projection": False}
    shape = replace(SHAPE, decoder="frozen", encoder="frozen", **none)
    names = {
        "trains_decoder_projection": ["decoder.projection.bias", "decoder.projection.weight"],
        "trains_prompt": ["decoder.prompt"],
        "trains_encoder_projection": ["encoder.projection.bias", "encoder.projection.weight"],
        "trains_head": ["decoder.head.weight"],
    }
    for part, wanted in names.items():
        lens = lens_of(replace(shape, **{part: True}))
        assert sorted(name for name, p in lens.named_parameters() if p.requires_grad) == wanted
        gradients_of(lens, lens(batch_of()))


def test_a_head_of_its_own_is_the_decoders_alone() -> None:
    lens = lens_of(replace(SHAPE, decoder="frozen", trains_head=True), moved=False)
    batch = batch_of()
    before, text = lens(batch, Lens.reinsertion)["plain"], lens(batch, Lens.explain_greedily)["tokens"]
    with torch.no_grad():
        lens.decoder.head.weight.copy_(lens.decoder.head.weight.flip(0))
    assert torch.equal(lens(batch, Lens.reinsertion)["plain"], before)
    flipped = lens(batch, Lens.explain_greedily)["tokens"]
    assert torch.equal(flipped[:, 0], TOKENS - 1 - text[:, 0])


def test_adapters_of_named_layers() -> None:
    pytest.importorskip("peft")
    shape = replace(SHAPE, decoder="lora", encoder="lora", lora=Lora(2, 4.0, 0.5, ["q_proj", "ff_out"]))
    lens = lens_of(shape)
    layers = {name: part for name, part in lens.model.named_modules() if hasattr(part, "lora_A")}
    assert {name.rpartition(".")[2] for name in layers} == {"q_proj", "ff_out"} and len(layers) == 6
    assert {part.scaling["decoder"] for part in layers.values()} == {2.0}  # type: ignore[index, union-attr]
    assert {part.lora_dropout["decoder"].p for part in layers.values()} == {0.5}  # type: ignore[index, union-attr]
    with pytest.raises(UserError, match="lora_targets; 'c_attn' is none of them"):
        lens_of(replace(shape, lora=Lora(2, targets=["c_attn"])))


def test_adapters_act_where_they_should() -> None:
    pytest.importorskip("peft")
    shape = replace(SHAPE, decoder="lora", encoder="lora", lora=Lora(rank=2))
    batch, text = batch_of(), torch.tensor([[4, 9, 1]])
    plain = native(n_layers=3)
    lens = lens_of(shape, moved=False)
    first = lens(batch)
    same(first, lens_of(replace(shape, decoder="frozen", encoder="frozen"), moved=False)(batch), 1e-12)
    names = {name for name, p in lens.named_parameters() if ".lora_" in name and p.requires_grad}
    assert {name.split(".lora_")[1].split(".")[1] for name in names} == {"decoder", "encoder"}
    assert not [name for name in names if "blocks.2" in name and ".encoder." in name], "which it does not read"
    gradients_of(lens, first)
    reading, writing = lens.rebuild(text), lens(batch, Lens.explain_greedily)["log_probs"]
    for adapter, unchanged in (("decoder", "reading"), ("encoder", "writing")):
        changed = lens_of(shape, moved=False)
        with torch.no_grad():
            for name, parameter in changed.named_parameters():
                if f".lora_B.{adapter}." in name:
                    parameter += 0.3
        assert torch.equal(changed.model(batch["tokens"]), plain(batch["tokens"])), "all off is the original"
        assert torch.equal(changed.rebuild(text), reading) == (unchanged == "reading")
        assert torch.equal(changed(batch, Lens.explain_greedily)["log_probs"], writing) == (unchanged == "writing")


@pytest.mark.parametrize("kind", ["full", "lora", "frozen"])
def test_activation_checkpointing_changes_no_gradient(kind: Any) -> None:
    shape = replace(SHAPE, decoder=kind, encoder=kind)
    for kv_cache in (True, False):
        plain, again = (lens_of(replace(shape, kv_cache=kv_cache)) for _ in range(2))
        checkpoint_activations(again, "full")
        batch = batch_of()
        same(gradients_of(again, again(batch)), gradients_of(plain, plain(batch)), 1e-12)


def test_explaining_and_scoring_agree() -> None:
    lens = lens_of()
    batch = batch_of()
    found = lens(batch, Lens.explain)
    assert found["tokens"].shape == found["log_probs"].shape == (ROWS, T)
    scored = lens({**batch, "written": found["tokens"]}, Lens.score)
    for name in ("log_probs", "rebuilt", "square"):
        torch.testing.assert_close(scored[name], found[name], rtol=1e-9, atol=1e-9)
    assert scored["entropy"].shape == (ROWS, T)
    torch.testing.assert_close(scored["entropy"].mean(1), lens(batch)["entropy"])
    scored["log_probs"].sum().backward()
    assert lens.decoder.prompt.grad.abs().sum() > 0
    without = {name: value for name, value in batch.items() if name != "tau"}
    assert torch.equal(lens(without, Lens.explain)["tokens"], found["tokens"])


def test_a_text_depends_on_its_row_alone() -> None:
    lens, batch = lens_of(), batch_of()
    found = lens(batch, Lens.explain)["tokens"]
    part = {name: value[2:3] for name, value in batch.items()}
    assert torch.equal(lens(part, Lens.explain)["tokens"], found[2:3])
    again = {**batch, "ids": batch["ids"] + torch.tensor([1, 0])}
    assert not torch.equal(lens(again, Lens.explain)["tokens"], found), "another epoch, another text"
    other = lens_of(replace(SHAPE, seed=12))
    assert not torch.equal(other(batch, Lens.explain)["tokens"], found)


def test_tokens_are_drawn_from_the_decoders_distribution() -> None:
    lens = lens_of(replace(SHAPE, t_text=1))
    batch = batch_of(rows=1)
    many = {name: value.expand(4000, *value.shape[1:]) for name, value in batch.items()}
    many["ids"] = torch.stack((torch.zeros(4000, dtype=torch.int64), torch.arange(4000)), 1)
    draws = KeyedDraws(SHAPE.seed, OWN, batch["ids"], batch["tau"])
    with torch.no_grad():
        tokens = lens(many, Lens.explain)["tokens"][:, 0]
        probabilities = lens.write(batch["activation"], draws).log_probs[0, 0].exp()
    counted = torch.bincount(tokens, minlength=TOKENS) / 4000
    assert float((counted - probabilities).abs().max()) < 4 * math.sqrt(0.25 / 4000)


def test_activations_are_computed_where_there_are_none() -> None:
    lens, batch = lens_of(), batch_of()
    generator = torch.Generator().manual_seed(6)
    texts = {
        "other_tokens": torch.randint(0, TOKENS, (ROWS, COLUMNS), generator=generator),
        "other_position": torch.tensor([5, 0, 2, 1]),
    }
    own = lens(batch | {}, Lens.activation)["activation"]
    assert torch.equal(own, batch["activation"])
    bare = {name: value for name, value in batch.items() if name not in ("activation", "other")} | texts
    rows = torch.arange(ROWS)
    activation = lens._stream.leaving(bare["tokens"], LAYER)[rows, bare["position"]]
    other = lens._stream.leaving(texts["other_tokens"], LAYER)[rows, texts["other_position"]]
    assert torch.equal(lens(bare, Lens.activation)["activation"], activation)
    assert not lens(bare, Lens.activation)["activation"].requires_grad
    same(lens(bare), lens({**batch, "activation": activation, "other": other}))
    checked = lens(bare, Lens.reinsertion)
    torch.testing.assert_close(checked["inserted"], checked["plain"])
    assert not torch.allclose(lens(batch, Lens.reinsertion)["inserted"], checked["plain"])


def test_without_a_first_token() -> None:
    """The model says nothing about the first token then, and of a text of one token nothing."""
    lens, batch = lens_of(replace(SHAPE, bos=None)), batch_of()
    gradients_of(lens, lens(batch))
    short = lens_of(replace(SHAPE, bos=None, t_text=1))
    assert torch.equal(short(batch)["lm"], torch.zeros(ROWS))
    gradients_of(short, short(batch))


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match="t_text=0 leaves no token"):
        replace(SHAPE, t_text=0)
    for changes in ({"layer": 3}, {"encoder_layer": 7}):
        with pytest.raises(UserError, match="layers 0 to 2, and no layer"):
            lens_of(replace(SHAPE, **changes))
