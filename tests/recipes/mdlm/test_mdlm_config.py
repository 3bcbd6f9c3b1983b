"""The settings refuse what cannot work, and every preset can be built."""

import pytest
import torch

from samestep.core.config import compose
from samestep.core.errors import UserError
from samestep.models.transformer import Transformer, TransformerConfig
from samestep.recipes.mdlm.config import PRESETS, MdlmConfig
from samestep.recipes.mdlm.corpus import DataConfig, load
from samestep.recipes.mdlm.objective import ObjectiveConfig
from samestep.recipes.mdlm.sampling import SamplingConfig
from samestep.recipes.mdlm.stages import resolve_config
from samestep.train.record.plan import global_batch


@pytest.mark.parametrize(
    ("kind", "values", "sentence"),
    [
        (DataConfig, {"sequence_length": 0}, "sequence_length must be a whole number of at least 1 or null, not 0"),
        (DataConfig, {"validation_fraction": 1.0}, "validation_fraction must be a number above 0 and below 1, not 1.0"),
        (DataConfig, {"test_fraction": 0.9}, "validation_fraction and data.test_fraction to less than 1 together"),
        (DataConfig, {"limit": 0}, "limit must be a whole number of at least 1 or null, not 0"),
        (ObjectiveConfig, {"least": 1.0}, "below 1"),
        (ObjectiveConfig, {"cut_rows": -0.1}, "cut_rows must be a number of at least 0 and at most 1, not -0.1"),
        (ObjectiveConfig, {"validation_times": 0}, "validation_times must be a whole number of at least 1, not 0"),
        (SamplingConfig, {"max_new_tokens": 0}, "max_new_tokens must be a whole number of at least 1, not 0"),
        (SamplingConfig, {"block_length": 0}, "block_length must be a whole number of at least 1 or null, not 0"),
        (SamplingConfig, {"max_new_tokens": 9, "block_length": 2, "steps": 4}, "steps to 5 or more"),
        (SamplingConfig, {"temperature": -1.0}, "temperature must be a number of at least 0, not -1.0"),
    ],
)
def test_impossible_settings_are_refused(kind: type, values: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        kind(**values)


@pytest.mark.parametrize(
    ("preset", "parameters"),
    [("tiny", 382_176), ("words", 725_664), ("small", 14_408_064), ("verify", 13_488), ("verify-sft", 13_488)],
)
def test_a_preset_fits_together(preset: str, parameters: int) -> None:
    values = PRESETS[preset]
    data, sampling = DataConfig(**values["data"]), SamplingConfig(**values["sampling"])
    ObjectiveConfig(**values.get("objective", {}))
    with torch.device("meta"):
        config = MdlmConfig(data=data, model=TransformerConfig(**values["model"]), sampling=sampling)
        network = Transformer(resolve_config(config).model)
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert max(data.sequence_length, sampling.max_new_tokens) <= network.config.max_sequence_length
    assert values["global_batch_size"] < len(load(data).train)


@pytest.mark.parametrize("preset", ["tiny", "small", "llada-8b", "verify"])
def test_a_batch_size_alone_is_that_of_each_device(preset: str) -> None:
    def rows(ranks: int, *args: str) -> int:
        return global_batch(compose(MdlmConfig, presets=PRESETS, args=[f"--preset={preset}", *args]), ranks)

    assert (rows(1, "--batch_size", "1"), rows(2, "--batch_size", "1")) == (1, 2)
    assert rows(2, "--batch_size", "3", "--accumulation", "4") == 24
    assert rows(2, "--batch_size", "3", "--global_batch_size", "7") == 7
    assert rows(1) == {"tiny": 16, "small": 64, "llada-8b": 8, "verify": 11}[preset], "as the preset has it"


def test_the_verify_preset_has_partial_rows_and_a_partial_batch() -> None:
    values = PRESETS["verify"]
    corpus = load(DataConfig(**values["data"]))
    assert corpus.train[len(corpus.train) - 1]["length"] < 16
    assert corpus.validation[len(corpus.validation) - 1]["length"] < 16
    assert len(corpus.train) % values["global_batch_size"]
    assert len(corpus.train) < 100
