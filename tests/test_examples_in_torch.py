"""Examples beside a plain PyTorch loop: the same losses from the same first weights on the same batches, in float64."""

import json
import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from sysconfig import get_path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from samestep import CausalTransformer
from samestep.cli.main import main
from samestep.data.order import BucketedOrder, Order, Shuffled
from toys import made, run_on_ranks

EXAMPLES = Path(__file__).parents[1] / "examples"
PLAIN = ["weight_decay=0", "schedule=constant", "distributed.dtype=float64", "log.every=1", "--no-log.tensorboard"]
Example = dict[str, Any]
Rows = list[dict[str, Any]]


def train(name: str, network: nn.Module, folder: Path) -> tuple[list[dict[str, float]], str]:
    """The rows of metrics.jsonl of the example on two ranks, and what was printed; first weights are the network's."""
    torch.save(network.state_dict(), folder / "first.pt")
    command = ["train", str(EXAMPLES / f"{name}.py"), "--preset=verify", f"--init_from={folder / 'first.pt'}", *PLAIN]
    printed = run_on_ranks(main, 2, [*command, f"--out={folder}", "--name=run"], logs=folder / "logs")
    return [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()], printed


def plain_losses(net: nn.Module, rows: Rows, order: Order, loss: Callable[[nn.Module, Rows], Tensor]) -> list[float]:
    """Eight steps of an ordinary loop, on a network that it changes."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0)
    losses = []
    for step in range(8):
        value = loss(net, [rows[index] for index in order.ids(step)[:, 1]])
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        losses.append(value.item())
    return losses


def logged(metrics: list[dict[str, float]], name: str) -> list[float]:
    return [row[name] for row in metrics if name in row]


def test_a_gpt(tmp_path: Path) -> None:
    example = runpy.run_path(str(EXAMPLES / "gpt.py"))
    text = torch.tensor(list((EXAMPLES / "gpt.py").read_bytes()))
    rows = [{"tokens": text[start : start + 33]} for start in range(0, len(text) - 1, 32)]
    cut = len(rows) + -len(rows) // 10
    assert len(rows[-1]["tokens"]) < 33, "a shorter row, which weighs less"

    def loss(net: nn.Module, batch: Rows) -> Tensor:
        """The mean over all bytes, row by row."""
        values = [cross_entropy(net(row["tokens"][None, :-1])[0], row["tokens"][1:], reduction="none") for row in batch]
        return torch.cat(values).mean()

    shape = replace(example["SHAPE"], **example["tiny"]["network"])
    network = made(lambda: CausalTransformer(shape), seed=0)
    metrics, printed = train("gpt", network, tmp_path)
    net = network.double()
    assert logged(metrics, "loss") == pytest.approx(plain_losses(net, rows[:cut], Shuffled(cut, 10, 0), loss), rel=1e-9)
    bits = loss(net, rows[cut:]).item() / torch.tensor(2.0, dtype=torch.float64).log().item()
    assert logged(metrics, "val/bits_per_byte")[-1] == pytest.approx(bits, rel=1e-9)
    assert "\nThe " in printed


def test_a_sequence_classifier(tmp_path: Path) -> None:
    """Its loss is torch's own weighted mean, and its rows are not padded here."""
    example = runpy.run_path(str(EXAMPLES / "sequence_classifier.py"))
    modules = sorted(Path(get_path("stdlib")).glob("[!_]*.py"))[:5]
    held_out, *parts = [list(example["rows"](module.read_text(encoding="utf-8"))) for module in modules]
    rows = [row for part in parts for row in part]
    kinds = torch.tensor([row["kind"] for row in rows])
    rarity = len(rows) / kinds.bincount().double()
    assert set(kinds.tolist()) == {0, 1, 2}

    def scores(net: nn.Module, batch: Rows) -> Tensor:
        return torch.cat([net(torch.tensor([row["words"]])) for row in batch])

    def loss(net: nn.Module, batch: Rows) -> Tensor:
        return cross_entropy(scores(net, batch), torch.tensor([row["kind"] for row in batch]), rarity)

    network = made(lambda: example["Network"](width=8, layers=1), seed=0)
    metrics, _ = train("sequence_classifier", network, tmp_path)
    net, order = network.double(), BucketedOrder(Shuffled(len(rows), 10, 0), [len(row["words"]) for row in rows], 0)
    assert logged(metrics, "loss") == pytest.approx(plain_losses(net, rows, order, loss), rel=1e-9)
    assert logged(metrics, "val/nll")[-1] == pytest.approx(loss(net, held_out).item(), rel=1e-9)
    found = {"kind": torch.tensor([row["kind"] for row in held_out]), "guess": scores(net, held_out).argmax(1)}
    assert logged(metrics, "val/f1")[-1] == pytest.approx(example["f1_scores"](found)["f1"], rel=1e-6)


def test_the_lines_and_f1_of_the_classifier() -> None:
    example = runpy.run_path(str(EXAMPLES / "sequence_classifier.py"))
    source = 'def add(a, b):\n    """Add two\n    numbers."""\n    # so simple\n\n    return "a" + b  # both\n'
    rows = list(example["rows"](source))
    assert [row["kind"] for row in rows] == [0, 2, 2, 1, 0]
    assert [len(row["words"]) for row in rows] == [8, 2, 2, 2, 8]
    assert min(min(row["words"]) for row in rows) > 0, "0 is padding"
    scores = example["f1_scores"]({"kind": torch.tensor([0, 0, 1, 2]), "guess": torch.tensor([0, 1, 1, 0])})
    expected = {"f1": (1 / 2 + 2 / 3) / 3, "f1_code": 1 / 2, "f1_comment": 2 / 3, "f1_docstring": 0.0}
    assert scores == pytest.approx(expected)
