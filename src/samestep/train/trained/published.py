"""What an exported model says of itself: the recipe it belongs to, and what is needed to build its network again."""

import copy
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from samestep.checkpoint.safetensor_files import read_safetensors_metadata
from samestep.core.errors import UserError
from samestep.core.json_files import parse_json, read_json_if_readable, write_json
from samestep.core.typed_json import from_json

RECORD = "samestep.json"
"""The file of the record in an exported folder."""
TRANSFORMERS, PEFT, SENTENCE_TRANSFORMERS = "transformers", "peft", "sentence-transformers"
_KEY = "samestep"


@dataclass(frozen=True)
class PublishedRecord:
    """In a folder as samestep.json, in a single safetensors file among its metadata."""

    recipe: str
    """Name, import path or file of the recipe."""
    stage: str = ""
    step: int | None = None
    learner: str = ""
    config: dict[str, Any] | None = None
    """The settings; None where the recipe reads them from files of its own."""
    form: str = ""
    """Of a folder in another program's form: TRANSFORMERS, PEFT or SENTENCE_TRANSFORMERS."""
    models: dict[str, str] = field(default_factory=dict)
    """Settings that name a model in the folder itself, which may be moved: its path from there."""
    files: Sequence[str] = ()
    """What is in the folder, so that nothing else is ever removed with it."""

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value not in (None, "", (), {})}

    def settings_in(self, folder: Path) -> dict[str, Any] | None:
        """The settings, with the models that are in the folder by their paths."""
        found = None if self.config is None else copy.deepcopy(self.config)
        for name, path in self.models.items():
            *sections, last = name.split(".")
            section: Any = found
            for part in sections:
                section = section.get(part) if isinstance(section, dict) else None
            if not isinstance(section, dict):
                raise UserError(
                    f"Export {folder} again: its {RECORD} names the setting {name}, which it does not have."
                )
            section[last] = str((folder / path).absolute())
        return found

    def metadata(self) -> dict[str, str]:
        """For a safetensors file, whose metadata is text."""
        return {_KEY: json.dumps(self.to_json())}

    def write(self, folder: Path) -> None:
        """Into an exported folder, with what else is in it by then."""
        names = sorted(path.name for path in folder.iterdir() if path.name != RECORD)
        write_json(folder / RECORD, replace(self, files=names).to_json())


def read_record(path: Path) -> PublishedRecord | None:
    """The record of a folder or of a safetensors file, or None if there is none."""
    if path.is_dir():
        found = read_json_if_readable(path / RECORD)
    else:
        found = _read_metadata(path) if path.suffix == ".safetensors" else None
    if not isinstance(found, dict):
        return None
    try:
        if unknown := found.keys() - {field.name for field in fields(PublishedRecord)}:
            raise ValueError(f"there are {unknown}, which may change what the others mean")
        return from_json(PublishedRecord, found)
    except ValueError:
        raise UserError(f"this version of samestep cannot read the record of {path}; export it again") from None


def _read_metadata(path: Path) -> Any:
    text = read_safetensors_metadata(path).get(_KEY)
    try:
        return None if text is None else parse_json(text)
    except ValueError:
        return None
