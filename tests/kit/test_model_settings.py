"""Settings of adapters, and the type of weights."""

import pytest

from samestep import Lora, UserError
from samestep.kit.model_settings import LoraSettings, TrainedModelSettings


def test_adapters() -> None:
    assert LoraSettings().lora is None
    assert LoraSettings(lora_rank=4).lora == Lora(4)
    every = LoraSettings(lora_rank=4, lora_alpha=2.0, lora_targets=("q_proj",), lora_dropout=0.5)
    assert every.lora == Lora(4, 2.0, 0.5, ("q_proj",))
    for wrong in ({"lora_rank": -1}, {"lora_alpha": 0.0}, {"lora_dropout": 1.0}):
        with pytest.raises(UserError, match=f"{next(iter(wrong))} must be"):
            LoraSettings(**wrong)


def test_weights_that_are_trained_are_float32() -> None:
    assert TrainedModelSettings(dtype="bfloat16").weights_dtype == "float32"
    assert TrainedModelSettings(dtype="bfloat16", lora_rank=2).weights_dtype == "bfloat16"
    assert TrainedModelSettings(lora_rank=2).weights_dtype == "auto"
