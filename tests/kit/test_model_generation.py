"""Generators of a language model."""

import torch

from adapter_toys import bench_of
from samestep import CausalConfig, GenerationConfig, World
from samestep.kit.generation import generator_in_stage, generator_outside
from samestep.kit.language_model import ByteModel

MODEL = ByteModel(CausalConfig(d_model=16, n_layers=1, n_heads=2, mlp_hidden_size=16, vocab_size=259, init_std=1.0))


def test_both_write_what_the_model_may_and_end_where_it_ends() -> None:
    how, bench, ids = GenerationConfig(max_new_tokens=40), bench_of(World.single(), "ddp"), torch.tensor([[0, 0]])
    network = MODEL.network().eval()
    inside = generator_in_stage(bench, MODEL, "write", how)
    outside = generator_outside(MODEL, "write", how, bench.config.seed, World.single(), 4)
    written = [made(network, [MODEL.prompt("a")], ids, step=0).to_lists()[0] for made in (inside, outside)]
    assert written[0] == written[1]
    assert not set(MODEL.forbidden).intersection(written[0])
    assert MODEL.eos[0] not in written[0][:-1]
    assert outside.config.rows_at_once == 4 and outside.check_stop is None


def test_only_inside_of_a_step_it_may_be_left() -> None:
    bench = bench_of(World.single(), "ddp")
    made = [generator_in_stage(bench, MODEL, "write", GenerationConfig(), in_step=inside) for inside in (True, False)]
    assert made[0].check_stop is not None and made[1].check_stop is None
