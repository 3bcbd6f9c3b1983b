"""The ports of docs/porting.md: a script of another library and its port train the same, from the same first weights on
the same batches, on one rank and on two. And its tables: the names on either side are there."""

import json
import runpy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import RandomSampler

import samestep
from samestep.cli.main import main
from samestep.data.order import Shuffled
from toys import made, run_on_ranks

SCRIPTS = Path(__file__).parents[1] / "examples" / "porting"
WORDS = ("cat", "dog", "hen", "cow", "fox")
TEXTS = [f"a {'very ' * number}little {one} sat on the {two}" for one in WORDS for number, two in enumerate(WORDS)]
"""Of several lengths, so that rows are padded, and so many that the last batch of an epoch is smaller."""


def shuffle_alike(monkeypatch: pytest.MonkeyPatch, rows: int, batch: int) -> None:
    """Have a shuffled loader read the rows in the order that samestep gives them. A pass over it is an epoch."""
    order, passes = Shuffled(rows, batch, seed=0), iter(range(1000))

    def indices(sampler: RandomSampler) -> Iterator[int]:
        first = next(passes) * order.steps_per_epoch
        for step in range(first, first + order.steps_per_epoch):
            yield from order.ids(step)[:, 1].tolist()

    monkeypatch.setattr(RandomSampler, "__iter__", indices)


def train_port(folder: Path, name: str, nproc: int, *args: str) -> Path:
    """The directory of a run of the port."""
    command = ["train", str(SCRIPTS / f"{name}.py"), "log.every=1", "--no-log.tensorboard", *args]
    run_on_ranks(main, nproc, [*command, f"--out={folder}", f"--name={name}"], logs=folder / "logs")
    return folder / name


def check_metric(run: Path, name: str, before: Sequence[float]) -> None:
    """Refuse a run that logged other values than the script before it had."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = [row[name] for row in rows if name in row]
    assert found == pytest.approx(list(before), rel=1e-6, abs=1e-6)


def check_weights(run: Path, before: dict[str, Tensor]) -> None:
    """Refuse a run that ended with other weights than the script before it."""
    torch.testing.assert_close(samestep.load(str(run), "last").network.state_dict(), before, rtol=1e-5, atol=1e-5)


def first_weights(scripts: dict[str, Any], folder: Path) -> str:
    """The setting with which a port begins as the script does, which seeds torch with 0."""
    torch.save(made(scripts["network"], seed=0).state_dict(), folder / "first.pt")
    return f"--init_from={folder / 'first.pt'}"


def keep(losses: list[float], function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function, and keep its result: the loss of a micro-batch."""
    result = function(*args, **options)
    losses.append(result.item())
    return result


@pytest.mark.timeout(200)
@pytest.mark.parametrize("nproc", [1, 2])
def test_a_script_of_hf_trainer(nproc: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import Trainer

    model, texts, losses = tmp_path / "model", tmp_path / "texts.txt", list[float]()
    make_model(model)
    texts.write_text("\n\n".join(TEXTS))
    monkeypatch.chdir(tmp_path)
    usual = Trainer.training_step
    monkeypatch.setattr(Trainer, "training_step", lambda *args: keep(losses, usual, *args))  # what it logs is rounded
    monkeypatch.setattr(Trainer, "_get_train_sampler", lambda trainer, rows: RandomSampler(rows))
    shuffle_alike(monkeypatch, rows=len(TEXTS) - 8, batch=8)
    trainer = runpy.run_path(str(SCRIPTS / "hf_trainer_before.py"))["trainer"]
    run = train_port(tmp_path / "runs", "hf_trainer_after", nproc, f"--model={model}", f"--texts={texts}")

    epochs = torch.tensor(losses).view(3, 5)  # micro-batches of 4, 4; 4, 4; 1: each loss is its part of the step's
    check_metric(
        run, "loss", torch.stack([epochs[:, :2].sum(1), epochs[:, 2:4].sum(1), epochs[:, 4]], 1).flatten().tolist()
    )
    check_metric(run, "val/loss", [row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row])
    check_weights(run, trainer.model.state_dict())


@pytest.mark.parametrize("nproc", [1, 2])
@pytest.mark.parametrize(
    "port", [["accelerate_after"], ["lightning_after", "schedule=constant"]], ids=lambda port: port[0]
)
def test_a_script_of_accelerate(port: list[str], nproc: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script for Lightning trains the same network, with another schedule."""
    import accelerate

    monkeypatch.chdir(tmp_path)
    losses = list[float]()
    usual = accelerate.Accelerator.backward
    monkeypatch.setattr(accelerate.Accelerator, "backward", lambda self, loss: usual(self, keep(losses, lambda: loss)))
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    shuffle_alike(monkeypatch, rows=90, batch=10)
    before = runpy.run_path(str(SCRIPTS / "accelerate_before.py"))
    run = train_port(tmp_path / "runs", port[0], nproc, first_weights(before, tmp_path), *port[1:])

    steps = torch.tensor(losses).view(-1, 2).mean(1).tolist()
    check_metric(run, "loss", steps)
    check_metric(run, "val/accuracy", before["accuracies"])
    check_weights(run, torch.load("net.pt"))
    with pytest.raises(AssertionError):
        check_metric(run, "loss", [*steps[:-1], steps[-1] + 1e-5])


@pytest.mark.parametrize("nproc", [1, 2])
def test_a_script_of_lightning(nproc: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import lightning

    monkeypatch.chdir(tmp_path)
    losses, usual = list[float](), lightning.LightningModule.log

    def log(module: lightning.LightningModule, name: str, value: Tensor, **options: Any) -> None:
        if name == "loss":
            losses.append(value.item())
        usual(module, name, value, **options)

    monkeypatch.setattr(lightning.LightningModule, "log", log)
    shuffle_alike(monkeypatch, rows=90, batch=10)
    before = runpy.run_path(str(SCRIPTS / "lightning_before.py"))
    run = train_port(tmp_path / "runs", "lightning_after", nproc, first_weights(before, tmp_path))

    check_metric(run, "loss", torch.tensor(losses).view(-1, 2).mean(1).tolist())
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["val/loss"] == pytest.approx(before["trainer"].callback_metrics["val_loss"].item(), rel=1e-6)
    check_weights(run, before["classifier"].net.state_dict())


@pytest.mark.parametrize("kind", ["linear", "cosine", "constant"])
def test_learning_rates_are_those_of_transformers_but_for_the_warm_up(kind: str) -> None:
    """It reaches the peak a step earlier, and begins above 0; after it, and without it, all rates are the same."""
    import transformers

    name = "constant_with_warmup" if kind == "constant" else kind
    for warmup in (0, 4):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        schedule = transformers.get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=20)
        before = []
        for _ in range(20):
            before.append(schedule.get_last_lr()[0])
            optimizer.step()
            schedule.step()
        after = [samestep.Schedule(0.1, 20, warmup, kind)(step) for step in range(20)]
        assert after[warmup:] == pytest.approx(before[warmup:])
        assert after[:warmup] == pytest.approx(before[1 : warmup + 1])
        assert warmup == 0 or (before[0] == 0 and after[0] == pytest.approx(0.1 / warmup))


def make_model(folder: Path) -> None:
    """A tiny model of transformers, with a tokenizer whose tokens are letters."""
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = {chr(code): number for number, code in enumerate(range(32, 127))}
    tokenizer = Tokenizer(models.BPE({**letters, "<pad>": len(letters)}, []))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>").save_pretrained(folder)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = made(lambda: LlamaForCausalLM(LlamaConfig(vocab_size=96, max_position_embeddings=512, **shape)))
    model.save_pretrained(folder)
