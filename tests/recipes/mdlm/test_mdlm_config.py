"""The settings refuse what cannot work, and every preset can be built."""

import pytest

from samestep.core.errors import UserError
from samestep.recipes.mdlm.config import DataConfig, ObjectiveConfig, SamplingConfig


@pytest.mark.parametrize(
    ("kind", "values", "sentence"),
    [
        (DataConfig, {"sequence_length": 0}, "data.sequence_length to 1 or more"),
        (DataConfig, {"validation_fraction": 1.0}, "between 0 and 1"),
        (ObjectiveConfig, {"least": 1.0}, "below 1"),
        (ObjectiveConfig, {"cut_rows": -0.1}, "between 0 and 1"),
        (ObjectiveConfig, {"validation_times": 0}, "1 or more"),
        (SamplingConfig, {"length": 0}, "length to 1 or more"),
        (SamplingConfig, {"length": 8, "block_length": 9}, "between 1 and length=8"),
        (SamplingConfig, {"length": 9, "block_length": 2, "steps": 4}, "steps to 5 or more"),
        (SamplingConfig, {"temperature": -1.0}, "temperature to 0 or more"),
        (SamplingConfig, {"remasking": "none"}, "one of low_confidence, random"),
    ],
)
def test_impossible_settings_are_refused(kind: type, values: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        kind(**values)
