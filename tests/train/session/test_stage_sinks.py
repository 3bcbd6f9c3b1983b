"""Settings and best values beside the metrics: TensorBoard's HParams tab has a row for a run, W&B the same settings."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import wandb
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams.api_pb2 import ListSessionGroupsRequest
from tensorboard.plugins.hparams.backend_context import Context
from tensorboard.plugins.hparams.list_session_groups import Handler

from samestep.core.errors import UserError
from samestep.core.rundir import RunDir
from samestep.train.api.recipe import Stage
from samestep.train.logging.sinks import Sink
from samestep.train.record.config import Config, Distributed, Log
from samestep.train.session.context import SessionContext
from samestep.train.session.stage_sinks import open_stage_sinks
from samestep.world.world import World
from train.session.hooks.test_saving import records_of_wandb

pytestmark = pytest.mark.usefixtures("own_wandb")
STAGES = [Stage("fit", Any, best=("val/nll", "min")), Stage("rank", Any)]


def opened(run: Path, config: Config, step: int = 0, own: Config | None = None) -> list[Sink]:
    nothing: Any = None
    world = World.single()
    context = SessionContext(
        "r", nothing, config, world, RunDir(run), nothing, nothing, nothing, is_disk_shared=True, start_over=False
    )
    return open_stage_sinks(context, STAGES[0], STAGES, own or config, step)


def trained(run: Path, config: Config, step: int, values: dict[int, float]) -> None:
    """Open the sinks, write validations and best values, and end."""
    sinks = opened(run, config, step)
    for at, value in values.items():
        for sink in sinks:
            sink.write(at, 0, {"val/nll": value})
            if value < 1.0:
                sink.write_best(at, "val/nll", value)
    for sink in sinks:
        sink.close()


def hparams_tab(folder: Path) -> dict[str, tuple[dict[str, Any], dict[str, float]]]:
    """By row the settings and the results, as TensorBoard's own backend finds them below a folder."""
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(folder))
    multiplexer.Reload()
    provider = MultiplexerDataProvider(multiplexer, str(folder))
    request = ListSessionGroupsRequest(allowed_statuses=[0], slice_size=9, include_metrics=True)
    found = Handler(RequestContext(), Context(TBContext(data_provider=provider)), "", request).run()
    return {
        group.name: (
            {name: getattr(value, value.WhichOneof("kind")) for name, value in group.hparams.items()},
            {metric.name.tag: metric.value for metric in group.metric_values},
        )
        for group in found.session_groups
    }


def test_the_hparams_tab_has_one_row_for_each_run_also_after_a_resume(tmp_path: Path) -> None:
    config = Config(learning_rate=0.5, max_time=None, distributed=Distributed(strategy="fsdp"))
    trained(tmp_path / "a", config, 0, {2: 0.25, 4: 7.0})
    trained(tmp_path / "a", config, 2, {4: 0.75, 6: 2.0})
    trained(tmp_path / "b", replace(config, learning_rate=0.25), 0, {2: 0.5})
    found = hparams_tab(tmp_path)
    assert found.keys() == {"a/tensorboard/fit", "b/tensorboard/fit"}
    (settings, results), (other, _) = found["a/tensorboard/fit"], found["b/tensorboard/fit"]
    assert results == {"val/nll": 2.0, "best/val/nll": 0.75}
    assert (settings["learning_rate"], other["learning_rate"]) == (0.5, 0.25)
    assert settings["distributed.strategy"] == "fsdp" and settings["deterministic"] is False
    assert "max_time" not in settings, "nothing is an empty cell"


def test_wandb_has_the_same_settings_and_none_has_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "MY_TOKEN": "very-private-words"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.argv", ["samestep", "train", "name=very-private-words"])
    config = Config(out="/home/anna/runs", name="very-private-words", log=Log(wandb=True), learning_rate=0.5)
    for sink in opened(tmp_path / "a", config, own=replace(config, learning_rate=0.25)):
        sink.write(1, 0, {"val/nll": 1.0})
        sink.committed(1)
        sink.close()
    settings, _ = hparams_tab(tmp_path)["a/tensorboard/fit"]
    config_there, metrics = sent_to_wandb(tmp_path / "a")
    assert settings["learning_rate"] == config_there["fit/learning_rate"] == 0.25, "the stage's own"
    assert config_there["learning_rate"] == 0.5
    assert settings["log.wandb"] is config_there["log"]["wandb"] is True
    assert settings["out"] == config_there["out"] == "~/runs"
    assert metrics["fit/val/nll"] == (True, False), "the smallest value is the best"
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"very-private-words" in content or b"/home/anna" in content for content in written)


def test_what_wandb_refuses_is_a_mistake_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**settings: Any) -> None:
        raise wandb.errors.UsageError("No API key configured. Use `wandb login` to log in.")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(UserError, match=r"log.wandb=true: No API key .* to log in; or set WANDB_MODE=offline"):
        opened(tmp_path / "a", Config(log=Log(wandb=True, tensorboard=False)))


def sent_to_wandb(run: Path) -> tuple[dict[str, Any], dict[str, tuple[bool, bool]]]:
    """The settings, and which metrics have their smallest or their largest value in the summary."""
    from wandb.proto import wandb_internal_pb2

    settings, metrics = {}, {}
    (path,) = run.glob("wandb/offline-run-*/*.wandb")
    for text in records_of_wandb(path):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(text)
        settings |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        if record.metric.name:
            metrics[record.metric.name] = (record.metric.summary.min, record.metric.summary.max)
    return settings, metrics
