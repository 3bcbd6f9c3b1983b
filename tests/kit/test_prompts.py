"""Prompts on the command line, and the records of `samestep sample`."""

from pathlib import Path

import pytest
from torch import Tensor

from samestep import UserError
from samestep.kit.prompts import PromptOptions, sample_texts


def test_a_prompt_or_a_file_of_them(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("one\ntwo\n")
    assert PromptOptions(prompt="a").texts() == ["a"] and PromptOptions(prompts=file).texts() == ["one", "two"]
    assert PromptOptions().texts() == [""]
    with pytest.raises(UserError, match="Give --prompt or --prompts, not both"):
        PromptOptions(prompt="a", prompts=file)


def test_records_in_order_each_with_ids_of_its_own() -> None:
    seen: list[list[int]] = []

    def complete(numbers: list[int], ids: Tensor) -> list[tuple[str, bool]]:
        seen.extend(ids.tolist())
        return [(f"{number}!", bool(number)) for number in numbers]

    records = sample_texts(["a", "b"], 2, complete)
    assert seen == [[0, 0], [1, 0], [0, 1], [1, 1]]
    assert [tuple(record.values()) for record in records] == [
        ("a", 0, "0!", False),
        ("a", 1, "0!", False),
        ("b", 0, "1!", True),
        ("b", 1, "1!", True),
    ]
