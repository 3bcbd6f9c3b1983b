"""What a learner with adapters begins with: a base or adapters, out of every kind of file, under whatever names."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adapter_toys import LORA, bench_of
from samestep import Lora, UserError
from samestep.checkpoint.store import Store
from samestep.checkpoint.weight_files import save_weights
from samestep.train.learner.learner import Learner
from samestep.train.learner.lora import add_adapters, plain_name
from samestep.train.weights.run_checkpoints import LEARNERS, learner_parts
from samestep.world.world import World
from toys import Net, default_dtype, made, rate

peft = pytest.importorskip("peft")
ALONE = World.single()


def learner(folder: Path, given: Any = None, **changes: Any) -> Learner:
    """A learner in a run of its own."""
    settings: dict[str, Any] = {"lora": LORA, **{k: changes.pop(k) for k in ("lora",) if k in changes}}
    bench = bench_of(ALONE, "ddp", "float32", folder=folder / f"run_{len(list(folder.iterdir()))}", **changes)
    return bench.learner(given or made(Net), rate=rate, **settings)


def parts(found: Learner) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The base and the adapters, by plain names."""
    with found.inference() as module:
        state = {plain_name(name): tensor.detach().clone() for name, tensor in module.state_dict().items()}
    adapters = {name: tensor for name, tensor in state.items() if "lora_" in name}
    return {name: tensor for name, tensor in state.items() if name not in adapters}, adapters


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture
def trained(tmp_path: Path) -> Learner:
    """A learner whose adapters are not those that a seed draws."""
    found = learner(tmp_path)
    with torch.no_grad():
        for number, parameter in enumerate(found.saved_parameters().values()):
            parameter.fill_(0.1 * (1 + number))
    return found


def write_peft(folder: Path, adapters: dict[str, Tensor], **changes: Any) -> None:
    """As peft saves them."""
    settings = peft.LoraConfig(r=2, lora_alpha=6, target_modules=["first", "last"], **changes)
    model = peft.get_peft_model(made(Net), settings)
    own = {plain_name(name): p for name, p in model.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for name, tensor in adapters.items():
            own[name].copy_(tensor)
    model.save_pretrained(folder)


def about(learner: Learner) -> dict[str, Any]:
    """What a run records beside the state."""
    return {LEARNERS: learner_parts({"model": learner})}


@pytest.mark.parametrize("form", ["checkpoint", "weights.pt", "peft"])
def test_adapters_come_from_every_form(tmp_path: Path, trained: Learner, form: str) -> None:
    base, adapters = parts(trained)
    Store(tmp_path / "checkpoint", ALONE).save(1, {"model": trained}, about(trained))
    save_weights(tmp_path / "weights.pt", trained.weights())
    write_peft(tmp_path / "peft", adapters)
    source = {"checkpoint": tmp_path / "checkpoint/step_00000001"}.get(form, tmp_path / form)
    for given in (made(Net), lambda: made(Net), with_buffer(made(Net))):
        found = parts(learner(tmp_path, given, init_from=str(source)))
        assert same(found[1], adapters)
        assert same({name: tensor for name, tensor in found[0].items() if name != "count"}, base)


def with_buffer(network: nn.Module) -> nn.Module:
    """A network whose buffer a checkpoint would hold, and a file of peft does not."""
    network.register_buffer("count", torch.zeros(2))
    return network


def test_adapters_of_another_base_are_refused(tmp_path: Path, trained: Learner) -> None:
    Store(tmp_path / "checkpoint", ALONE).save(
        1, {"model": trained}, about(trained) | {"frozen": {"base/model": "of another one"}}
    )
    with pytest.raises(UserError, match="begins with adapters that were trained on another base"):
        learner(tmp_path, init_from=str(tmp_path / "checkpoint/step_00000001"))


def network() -> nn.Module:
    """Whose weights can only come from a file."""
    assert torch.empty(0).is_meta, "built without memory"
    return Net()


@pytest.mark.parametrize("prefix", ["", "model."])
def test_a_base_comes_from_a_file_and_is_built_without_memory(tmp_path: Path, prefix: str) -> None:
    with default_dtype(torch.float32):
        wanted = made(Net, 7).state_dict()
    torch.save({prefix + name: tensor for name, tensor in wanted.items()}, tmp_path / "base.pt")
    drawn = parts(learner(tmp_path))[1]
    for given in (network, made(Net)):
        base, adapters = parts(learner(tmp_path, given, init_from=str(tmp_path / "base.pt")))
        assert same(base, wanted)
        assert same(adapters, drawn), "from the seed and their names, whatever the base"
    assert all(bool((tensor == 0).all()) == (".lora_B." in name) for name, tensor in drawn.items())


def test_a_resume_reads_a_base_again_and_adapters_with_the_checkpoint(tmp_path: Path, trained: Learner) -> None:
    save_weights(tmp_path / "adapters.pt", trained.weights())
    torch.save(made(Net, 7).float().state_dict(), tmp_path / "base.pt")
    for form in ("base", "adapters"):
        source = tmp_path / f"{form}.pt"
        for resumed in (False, True):
            bench = bench_of(ALONE, "ddp", "float32", folder=tmp_path / form, resumed=resumed, init_from=str(source))
            found = parts(bench.learner(made(Net), rate=rate, lora=LORA))
            bench.first_weights.check_source_used(is_last=True)
        assert all(bool(tensor.isnan().all()) for tensor in found[1].values()) == (form == "adapters")
        assert not any(bool(tensor.isnan().any()) for tensor in found[0].values())
        source.unlink()
        bench = bench_of(ALONE, "ddp", "float32", folder=tmp_path / form, resumed=True, init_from=str(source))
        if form == "adapters":
            bench.learner(made(Net), rate=rate, lora=LORA)
        else:
            with pytest.raises(UserError, match=r"the base of learner 'model' is in no checkpoint, .* does not exist"):
                bench.learner(made(Net), rate=rate, lora=LORA)


class Drawing(Net):
    """A network that draws its parameters one by one."""

    def init_parameter(self, name: str, weight: Tensor) -> None:
        assert "lora" not in name and "base_layer" not in name
        weight.normal_(0.0, 0.1)


def test_a_base_that_draws_itself_has_the_weights_it_has_without_adapters(tmp_path: Path) -> None:
    plain = learner(tmp_path, Drawing, lora=None).weights()
    base, _ = parts(learner(tmp_path, Drawing))
    assert same(base, plain)


def test_a_network_that_has_adapters_is_taken_as_it_is(tmp_path: Path, trained: Learner) -> None:
    base, adapters = parts(trained)
    write_peft(tmp_path / "peft", adapters)
    loaded = peft.PeftModel.from_pretrained(made(Net).float(), tmp_path / "peft", is_trainable=True)
    found = learner(tmp_path, loaded, lora=None)
    assert same(parts(found)[1], adapters)
    assert same(parts(found)[0], base)
    assert {plain_name(name) for name in found.weights()} == adapters.keys()
    merged = found.merged_weights()
    wanted = loaded.merge_and_unload().state_dict()
    assert merged.keys() == wanted.keys()
    assert all(torch.allclose(merged[name], tensor) for name, tensor in wanted.items())


def both(folder: Path, trained: Learner) -> str:
    with trained.inference() as module:
        save_weights(folder / "both.pt", module.state_dict())
    return str(folder / "both.pt")


def other_alpha(folder: Path, trained: Learner) -> str:
    write_peft(folder / "peft", parts(trained)[1])
    file = folder / "peft/adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "lora_alpha": 12}))
    return str(folder / "peft")


def other_layers(folder: Path, trained: Learner) -> str:
    weights = trained.weights()
    save_weights(folder / "few.pt", {name: weights[name] for name in list(weights)[:2]})
    return str(folder / "few.pt")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (both, "are those of a base and of adapters; save each to a file"),
        (other_alpha, r"have rank 2 and alpha 12, but this run has Lora\(rank=2, alpha=6\); use theirs"),
        (other_layers, "2 missing, namely last.lora_A.weight, last.lora_B.weight"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, trained: Learner, make: Any, sentence: str) -> None:
    source = make(tmp_path, trained)
    with pytest.raises(UserError, match=sentence):
        learner(tmp_path, init_from=source)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Lora(rank=0), "choose a rank of 1 or more"),
        (lambda: Lora(dropout=1.0), "at least 0 and below 1"),
        (lambda: Lora(targets="q_proj"), "must be 'all-linear' or a list of names"),
        (lambda: add_adapters(made(Net), Lora(targets=[])), "names no layer"),
        (lambda: add_adapters(made(Net), Lora(targets=["frist"])), "names 'frist', .*; did you mean first"),
        (lambda: add_adapters(made(Net), Lora(targets=["norm"])), "peft cannot add adapters here"),
        (lambda: add_adapters(nn.Embedding(2, 2), Lora()), "has no linear layer inside"),
        (lambda: add_adapters(add_adapters(made(Net), LORA), LORA), "has adapters already"),
    ],
)
def test_adapters_that_cannot_be_are_refused(make: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        make()


def test_a_function_that_builds_adapters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the function builds a network that has adapters already"):
        learner(tmp_path, lambda: add_adapters(made(Net), LORA), lora=None)
    with (
        pytest.raises(UserError, match="learner 'model' has no adapters to switch off"),
        learner(tmp_path, lora=None).adapters_off(),
    ):
        pass


def test_all_linear_leaves_the_head_of_a_language_model() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 17, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1)
    network = add_adapters(transformers.LlamaForCausalLM(config), Lora())
    layers = {name.rpartition(".lora_A")[0] for name, p in network.named_parameters() if ".lora_A." in name}
    assert len(layers) == 7
    assert not any("lm_head" in name for name in layers)
    assert isinstance(network, transformers.LlamaForCausalLM), "the network stays what it was"
