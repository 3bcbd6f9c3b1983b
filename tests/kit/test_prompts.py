"""Prompts on a command line: what is given, what is asked for, and what keys the noise of each text."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from data.records.test_reading import write
from samestep.cli.model_verbs import ModelVerb
from samestep.core.config import fields_of, paths_of
from samestep.core.errors import UserError
from samestep.kit.prompts import PromptOptions, Request, Requests, read_prompts
from samestep.train.api.recipe import Verb
from samestep.train.api.recipe_registry import find_recipe, known_recipes


@dataclass(frozen=True)
class Needing(PromptOptions):
    """Options that are nothing without a prompt."""

    needs_prompt = True
    prompt: str | None = None
    """A word of its own."""


def test_a_prompt_or_a_file_of_them(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("one\n\ntwo\n")
    assert PromptOptions(prompt="x").requests().prompts == ["x"]
    assert PromptOptions(prompts=file).requests().prompts == ["one", "two"]
    assert PromptOptions().requests().prompts == [""]
    asked: list[str] = []

    def otherwise() -> list[str]:
        asked.append("it")
        return ["otherwise"]

    for options in (PromptOptions(prompt="x"), PromptOptions(prompts=file)):
        assert options.requests(otherwise).prompts != ["otherwise"]
    assert not asked, "what is not needed is not looked for"
    assert PromptOptions().requests(otherwise).prompts == ["otherwise"] and asked
    with pytest.raises(UserError, match=r"^Give --prompt or --prompts, not both.$"):
        PromptOptions(prompt="x", prompts=file)
    with pytest.raises(UserError, match="samples must be a whole number of at least 1"):
        PromptOptions(samples=0)


@pytest.mark.parametrize("given", [{}, {"prompt": ""}])
def test_one_may_be_needed(given: dict[str, str]) -> None:
    with pytest.raises(UserError, match=r"^Give a text with --prompt, or a file"):
        Needing(**given)
    with pytest.raises(UserError, match="with --prompt, or a file"):
        PromptOptions(**given).require_prompt()
    assert Needing(prompt="x").requests().prompts == ["x"]
    assert {field.path: field.doc for field in fields_of(Needing)}["prompt"] == "A word of its own."


def test_every_sample_of_every_prompt() -> None:
    requests = Requests(["a", "b"], samples=2)
    assert list(requests) == [Request(0, 0), Request(0, 1), Request(1, 0), Request(1, 1)] and len(requests) == 4
    assert requests.each([[1], [2]]) == [[1], [1], [2], [2]]
    assert requests.ids().tolist() == [[0, 0], [1, 0], [0, 1], [1, 1]]
    assert Requests([]).ids().shape == (0, 2)
    texts = [{"text": text} for text in "wxyz"]
    assert requests.records(texts)[2] == {"prompt": "b", "sample": 0, "text": "y"}
    with pytest.raises(ValueError, match="shorter"):
        requests.records(texts[:3])


def test_a_text_does_not_depend_on_what_else_is_asked_for() -> None:
    """A request has the same keys, however many others there are; and no other has them."""
    few, many = Requests(["a", "b"], 1), Requests(["a", "b", "c"], 3)
    keys = [dict(zip(each, map(tuple, each.ids().tolist()), strict=True)) for each in (few, many)]
    assert keys[0].items() <= keys[1].items()
    assert len(set(keys[1].values())) == len({request.id for request in many}) == 9
    assert [request.id for request in few] == [0, 1 << 32]


OTHER_NAMES = {"text", "texts", "query", "queries", "num_samples", "n", "top", "count", "length", "max_tokens"}
OTHER_NAMES |= {"max_length", "max_new", "new_tokens", "temp", "output", "output_file", "file", "rows", "random_seed"}


@pytest.mark.parametrize("verb", ["sample", "evaluate"])
@pytest.mark.parametrize("recipe", sorted(known_recipes()))
def test_all_recipes_have_the_same_names(recipe: str, verb: str) -> None:
    """One for each thing: --prompt, --prompts, --samples, --max_new_tokens, --temperature, --limit; --seed and --out
    are there already."""
    found = getattr(find_recipe(recipe), verb)
    if not isinstance(found, Verb):
        return
    names = {*paths_of(found.options), *found.aliases}
    assert not names & OTHER_NAMES
    assert not names & {"seed", "out"}, "of all recipes"
    if verb == "sample":
        assert issubclass(found.options, PromptOptions)
    assert "out" in ModelVerb(verb, "", "", print, lambda *_: None, {}).options


def test_a_file_of_prompts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    assert read_prompts(tmp_path / "a.txt") == ["one", "two"]
    assert read_prompts(write(tmp_path / "a.csv", [{"prompt": "a\nb"}, {"prompt": "c"}])) == ["a\nb", "c"]
    assert read_prompts(write(tmp_path / "a.jsonl", [{"text": "a"}, {"prompt": "b"}])) == ["a", "b"]
    with pytest.raises(UserError, match="line 1: 'prompt' is missing"):
        read_prompts(write(tmp_path / "b.jsonl", [{"other": "a"}]))
