"""Values by optimizer step, and which parts train when."""

import pytest

from samestep import UserError
from samestep.core.config import compose
from samestep.recipes.lens import recipe
from samestep.recipes.lens.config import DecoderParts, LensConfig, TrainableComponents, ValueSchedule, steps_of


@pytest.mark.parametrize(("text", "steps"), [("500s", 500), ("2e", 14), ("30", 30), ("-1", 90), (" 3 s", 3)])
def test_lengths(text: str, steps: int) -> None:
    assert steps_of(text, steps_per_epoch=7, stage_steps=90) == steps


@pytest.mark.parametrize("text", ["", "2m", "-2", "1.5e", "e"])
def test_lengths_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match="500s"):
        steps_of(text, 7, 90)


def test_values_by_step() -> None:
    def values(kind: str, start: float, end: float, length: str = "5s") -> list[float]:
        schedule = ValueSchedule(kind, start, end, length)  # type: ignore[arg-type]
        return [round(schedule.at(step, steps_per_epoch=3, stage_steps=9), 6) for step in (0, 2, 4, 8)]

    assert values("constant", 0.7, 0.1) == [0.7] * 4
    assert values("linear", 1.0, 0.0) == [1.0, 0.5, 0.0, 0.0]
    assert values("cosine", 1.0, 0.0) == [1.0, 0.5, 0.0, 0.0]
    assert values("exponential", 1.0, 0.01) == [1.0, 0.1, 0.01, 0.01]
    assert values("linear", 0.0, 8.0, "-1") == [0.0, 2.0, 4.0, 8.0], "over the whole stage"
    assert values("linear", 0.0, 5.0, "2e") == [0.0, 2.0, 4.0, 5.0], "over two epochs of three steps"
    assert ValueSchedule("linear", 0.0, 1.0, "3s").at(-1, 1, 9) == 0.0, "before the first step"
    cosine = ValueSchedule("cosine", 1.0, 0.0, "5s")
    assert cosine.at(1, 1, 9) == pytest.approx(0.853553, abs=1e-6)


def test_schedules_that_cannot_be() -> None:
    with pytest.raises(UserError, match="exponential"):
        ValueSchedule("exponential", 1.0, 0.0)
    with pytest.raises(UserError, match="num_steps"):
        ValueSchedule("linear", num_steps="0s")
    with pytest.raises(UserError, match="temperatures"):
        LensConfig(gumbel_tau_schedule=ValueSchedule("linear", 1.0, 0.0))


def settings(*args: str) -> LensConfig:
    return compose(LensConfig, presets=recipe.presets, aliases=recipe.aliases, args=args)


def test_settings_as_users_write_them() -> None:
    found = settings(
        "gumbel_tau_schedule={type: linear, start: 1.0, end: 0.1, num_steps: 500s}",
        "alpha_schedule.type=exponential",
        "alpha_schedule.start=0.1",
        "trainable_components.decoder.base_model=lora",
        "trainable_components.encoder.base_model=false",
        "trainable_components.freeze_until.decoder.base_model=2e",
        "trainable_components.learning_rate_multipliers={decoder.prompt: 0.5}",
        "gradient_accumulation_steps=4",
        "activation_dumper.num_samples=100",
    )
    assert found.gumbel_tau_schedule == ValueSchedule("linear", 1.0, 0.1, "500s")
    assert (found.alpha_schedule.type, found.alpha_schedule.start, found.accumulation) == ("exponential", 0.1, 4)
    parts = found.trainable_components
    assert (parts.decoder.base_model, parts.encoder.base_model) == ("lora", False)
    groups = parts.groups(steps_per_epoch=7, stage_steps=90)
    assert groups["*.lora_*.decoder.*"].train_from == 14 and groups["decoder.prompt"].rate == 0.5
    assert len(groups) == 2


def test_parts_that_are_not_trained_have_no_rate() -> None:
    with pytest.raises(UserError, match=r"decoder\.base_model is not"):
        TrainableComponents(freeze_until={"decoder.base_model": "5s"})
    with pytest.raises(UserError, match="multiplier"):
        TrainableComponents(learning_rate_multipliers={"decoder.prompt": -1.0})
    off = DecoderParts(projection_layer=False, prompt=False)
    assert TrainableComponents(decoder=off).trained == ["encoder.projection_layer"]
