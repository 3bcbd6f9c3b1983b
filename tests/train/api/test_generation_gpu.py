"""On a GPU completions are sampled by a CUDA graph."""

from collections.abc import Callable
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from language_toys import native, of_transformers
from samestep import Completions, GenerationConfig, LocalGenerator, World, completion_log_probs
from samestep.models.decoding import left_pad
from samestep.train.api import generation
from samestep.train.learner.draws import Draws

pytestmark = pytest.mark.gpu
PROMPTS = [[3, 4, 5, 6, 7], [8], [9, 10, 11]]
IDS = torch.tensor([[0, 5], [0, 6], [1, 5]])
NETWORKS: dict[str, Callable[[], nn.Module]] = {"native": native, "llama": lambda: of_transformers("llama")}


def written(network: nn.Module, tokens: int = 32, prompts: list[list[int]] = PROMPTS) -> Completions:
    config = GenerationConfig(max_new_tokens=tokens, rows_at_once=2)
    generator = LocalGenerator(config, Draws("test", 0), World.single("cuda"), eos=[1])
    return generator(network, prompts, IDS[: len(prompts)], step=3)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_graph_samples_what_the_network_samples(name: str, caplog: pytest.LogCaptureFixture) -> None:
    network = NETWORKS[name]().cuda().double().eval()
    recorded = written(network)
    assert not caplog.records, "it was recorded"
    with mock.patch.object(generation, "RECORDS_FROM", 10**9):
        plain = written(network)
    assert recorded.to_lists() == plain.to_lists()
    assert recorded.finished.tolist() == plain.finished.tolist()
    torch.testing.assert_close(recorded.log_probs, plain.log_probs, rtol=0, atol=1e-5)
    scored = log_probs_in_training(network, recorded)
    torch.testing.assert_close(recorded.log_probs.double(), scored, rtol=0, atol=1e-5)


def log_probs_in_training(network: nn.Module, completions: Completions) -> Tensor:
    tokens, mask = left_pad(PROMPTS, device="cuda")
    assert mask is not None
    with torch.no_grad():
        return completion_log_probs(network, tokens, mask, completions.tokens, completions.mask).log_probs.double()


def test_what_cannot_be_recorded_is_sampled_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    class Waits(nn.Module):
        """Waits for the device in every call, which a graph cannot."""

        def __init__(self, network: nn.Module) -> None:
            super().__init__()
            self.network, self.config, self.new_cache = network, network.config, network.new_cache

        def forward(self, tokens: Tensor, attention_mask: Tensor | None = None, cache=None, logits_to_keep: int = 0):
            assert tokens.sum().item() >= 0
            return self.network(tokens, attention_mask, cache, logits_to_keep)

    network = native().cuda().double().eval()
    found = written(Waits(network))
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "generation is not recorded as a CUDA graph"
    ] * 2, "once for each two rows"
    assert found.to_lists() == written(network).to_lists()


def test_graphs_leave_no_memory_behind() -> None:
    network = of_transformers("llama").cuda().eval()
    written(network)
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        written(network)
    assert torch.cuda.memory_allocated() <= before + 2**20
