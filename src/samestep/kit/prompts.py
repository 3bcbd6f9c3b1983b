"""Prompts on a command line, and the requests that they become: the same in all recipes that generate.

@dataclass(frozen=True)
class SampleOptions(PromptOptions):  # --prompt, --prompts, --samples
    chat: bool = False

requests = options.requests()
texts = write(requests.each(tokens), requests.ids())
return requests.records({"text": text} for text in texts)
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from samestep.core.config.bounds import Count
from samestep.core.config.checked import CheckedConfig
from samestep.core.errors import UserError
from samestep.core.json_files import Json
from samestep.data.data_file import existing_file
from samestep.data.records.lines import is_record_file
from samestep.data.records.reading import Records
from samestep.train.trained.model import Model

T = TypeVar("T")


@dataclass(frozen=True)
class PromptOptions(CheckedConfig):
    """What to generate from, and how often."""

    needs_prompt: ClassVar[bool] = False
    """Whether there is nothing to do without one."""
    _given: ClassVar[Sequence[str] | None] = None
    """Prompts that came from Python: no flag."""
    prompt: str | None = None
    """The text to go on from."""
    prompts: Path | None = None
    """A text file with one prompt per line, or records with a column `prompt` (or `text`)."""
    samples: Count = 1
    """Texts for each prompt."""

    def __post_init__(self) -> None:
        """Refuse what cannot be, before the model is opened."""
        if self.prompt and self.prompts is not None:
            raise UserError("Give --prompt or --prompts, not both.")
        if self.needs_prompt:
            self.require_prompt()

    def require_prompt(self) -> None:
        """Refuse to go on without any."""
        if not self.prompt and self.prompts is None:
            raise UserError("Give a text with --prompt, or a file with one on each line with --prompts.")

    def of(self, prompts: Sequence[str]) -> Self:
        """These options, for prompts that are given in Python."""
        given = copy(self)
        object.__setattr__(given, "_given", list(prompts))
        return given

    def requests(self, otherwise: Callable[[], Sequence[str]] | None = None) -> "Requests":
        """One for each sample of each prompt that was given, or of those that `otherwise` gives; or of an empty one."""
        if self._given is not None:
            return Requests(self._given, self.samples)
        if self.prompts is not None:
            return Requests(read_prompts(self.prompts), self.samples)
        if self.prompt or otherwise is None:
            return Requests([self.prompt or ""], self.samples)
        return Requests(otherwise(), self.samples)


class Request(NamedTuple):
    """One sample of one prompt, by their numbers."""

    prompt: int
    sample: int

    @property
    def id(self) -> int:
        """One number for both, which no other request has."""
        return (self.prompt << 32) + self.sample


@dataclass(frozen=True)
class Requests:
    """Every prompt as often as it is asked for, the samples of one after each other."""

    prompts: Sequence[str]
    samples: int = 1

    def __iter__(self) -> Iterator[Request]:
        return (Request(prompt, sample) for prompt in range(len(self.prompts)) for sample in range(self.samples))

    def __len__(self) -> int:
        return len(self.prompts) * self.samples

    def each(self, of_prompts: Sequence[T]) -> list[T]:
        """For each request what its prompt has."""
        return [of_prompts[request.prompt] for request in self]

    def ids(self) -> Tensor:
        """[requests, 2]: keys of noise, from the numbers of sample and prompt, so other requests make no difference."""
        return torch.tensor([(request.sample, request.prompt) for request in self]).view(-1, 2)

    def records(self, found: Iterable[Mapping[str, Json]]) -> list[dict[str, Json]]:
        """A record for each request, with its prompt, its number and what was found."""
        return [
            {"prompt": self.prompts[request.prompt], "sample": request.sample, **about}
            for request, about in zip(self, found, strict=True)
        ]


def read_prompts(path: str | Path, columns: Sequence[str] = ("prompt", "text")) -> list[str]:
    """The prompts of a text file, one a line; or of records, in the first of `columns` that a record has."""
    if not is_record_file(Path(path)) and not Path(path).is_dir():
        return _lines_of(existing_file(str(path)))
    records = Records(str(path), section=None)
    records.expect([columns])
    prompts = []
    for row in records.rows:
        name = next((name for name in columns if name in row.values), columns[0])
        prompts.append(records.texts(row, [name]))
    records.check()
    return [text for prompt in prompts if prompt for text in prompt.values()]


def _lines_of(file: Path) -> list[str]:
    try:
        lines = [line for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError:
        raise UserError(f"Save {file} as UTF-8; it is not.") from None
    if not lines:
        raise UserError(f"Put at least one prompt into {file}; it is empty.")
    return lines


def as_texts(given: str | Sequence[str]) -> list[str]:
    """One text or several, as a list; else refused."""
    texts = [given] if isinstance(given, str) else list(given)
    if not texts or not all(isinstance(text, str) for text in texts):
        raise UserError(f"Give a text, or a list of texts, not {given!r}.")
    return texts


def use_with_prompts(model: Model, prompts: str | Sequence[str], **options: Any) -> list[dict[str, Json]]:
    """The records that `samestep sample` makes of some prompts."""
    texts = as_texts(prompts)
    assert model.recipe.sample is not None
    found: list[dict[str, Json]] = model.use(model.recipe.sample, lambda own: own.of(texts), prompt=texts[0], **options)
    return found


def generate_texts(model: Model, prompts: str | Sequence[str], **options: Any) -> list[str]:
    """`model.generate(prompts)` of recipes that write: the texts, `samples` for each prompt after each other. Options
    and settings are those of `samestep sample`."""
    return [record["text"] for record in use_with_prompts(model, prompts, **options)]
