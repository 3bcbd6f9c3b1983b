"""A model of the Hugging Face Hub on the disk of this host: found in the cache, or downloaded into it.

Here is chosen what is downloaded, and looked whether it is all there: configuration, tokenizer and weights, and no
code. Weights as safetensors are preferred to PyTorch's own files, which are read as data alone.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from samestep.core.errors import UserError
from samestep.core.hub_download import HubDownload, cached_tree, import_hub
from samestep.core.json_files import parse_json
from samestep.core.paths import expand_home
from samestep.models.hub_modules import has_all_modules, module_files

CONFIG = "config.json"
SMALL = ("*.json", "*.model", "*.tiktoken", "*.jinja", "merges.txt", "vocab.txt")
"""What is downloaded besides weights: configuration and tokenizer."""
TOKENIZERS = {
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
    "vocab.json",
    "vocab.txt",
}
"""One of these is in every model of text."""
_WEIGHTS = (("model.safetensors", "*.safetensors"), ("pytorch_model.bin", "pytorch_model*.bin"))
_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([^@\s]+))?")
_OF_PATHS = re.compile(r"runs/.*|.*\.(pt|pth|bin|ckpt|safetensors|gguf|py)")
"""What a user who writes this means on the disk, whether it is there or not."""


@dataclass(frozen=True)
class HubModel:
    """A model of the Hub, as a user names it."""

    name: str
    revision: str = "main"

    def __str__(self) -> str:
        return self.name if self.revision == "main" else f"{self.name}@{self.revision}"


def hub_model(text: str) -> HubModel | None:
    """The model of the Hub of this name, `org/name` or `org/name@revision`; None if it is a path, or no name."""
    match = _NAME.fullmatch(text)
    if match is None or _OF_PATHS.fullmatch(text) or expand_home(text).exists():
        return None
    return HubModel(match[1], match[2] or "main")


def cached_model(folder: Path) -> HubModel | None:
    """The model of the Hub whose folder in the cache this is, with its commit; None for any other folder."""
    match = re.fullmatch(r"models--(.+?)--(.+)", folder.parent.parent.name)
    is_snapshot = folder.parent.name == "snapshots" and re.fullmatch("[0-9a-f]{40}", folder.name) is not None
    return HubModel(f"{match[1]}/{match[2]}", folder.name) if match and is_snapshot else None


def weight_files(names: Collection[str], folder: Path) -> list[str]:
    """The files with the weights among those of a model, safetensors before PyTorch's own; an index is read in
    `folder`. Other formats, and copies of the weights that no index names, are left out."""
    for single, pattern in _WEIGHTS:
        index = f"{single}.index.json"
        if single in names:
            return [single]
        if index in names:
            return sorted(set(_read_index(folder / index)))
        if others := sorted(name for name in names if fnmatch(name, pattern)):
            return others
    return []


def is_complete(folder: Path, needs_tokenizer: bool = True, needs_weights: bool = True) -> bool:
    """Whether a snapshot in the cache has all files that a model needs."""
    names = {path.name for path in folder.iterdir() if path.is_file()}
    weights = weight_files(names, folder) if needs_weights else []
    has_weights = bool(weights) and names.issuperset(weights) and has_all_modules(folder)
    lacks_tokenizer = needs_tokenizer and names.isdisjoint(TOKENIZERS)
    return CONFIG in names and (has_weights or not needs_weights) and not lacks_tokenizer


class Download(HubDownload):
    """Finds a model in the cache of this host, or downloads it; calling it gives the commit."""

    kind, local = "model", "folder"

    def __init__(self, model: HubModel, commit: str | None = None, weights: bool = True) -> None:
        """Without `weights` it is the configuration and the tokenizer alone."""
        super().__init__(str(model), model.name, commit or model.revision)
        self._needs_weights = weights

    def find(self, downloaded: bool = False) -> Path | None:
        return find_in_cache(self.name, self.revision, not downloaded, self._needs_weights)

    def _download(self, hub: Any) -> Path:
        info = hub.HfApi().model_info(self.name, revision=self.revision, files_metadata=True)
        modules = module_files([file.rfilename for file in info.siblings])
        self._sizes = {
            file.rfilename: file.size or 0
            for file in info.siblings
            if "/" not in file.rfilename or file.rfilename in modules
        }
        if CONFIG not in self._sizes:
            raise UserError(f"Name another model; {self.label} has no {CONFIG}.")
        small = [name for name in self._sizes if any(fnmatch(name, pattern) for pattern in SMALL)]
        if not self._needs_weights:
            return self._fetch(hub, self.revision, small)
        folder = self._fetch(hub, info.sha, small)
        return self._fetch_wanted(hub, folder, [*{*small, *self._weights(folder), *modules}])

    def _weights(self, folder: Path) -> list[str]:
        found = weight_files([name for name in self._sizes if "/" not in name], folder)
        if not found:
            raise UserError(f"Name another model; {self.label} has neither safetensors nor PyTorch weights.")
        if not self._sizes.keys() >= set(found):
            raise UserError(f"Name another model; {self.label} lacks files that its index of weights names.")
        return found


def find_in_cache(name: str, revision: str, needs_tokenizer: bool = True, needs_weights: bool = True) -> Path | None:
    """The folder of a model in the cache, if it is complete there; nothing is asked from the network. What another
    program downloaded may lack the tokenizer: `needs_tokenizer`, unless the client knows that the model has none."""
    hub = import_hub()
    try:
        # Newer versions also compare with the list of files that they have kept.
        only = {"allow_patterns": list(SMALL), "ignore_patterns": ["*/*"]}
        folder = hub.snapshot_download(name, revision=revision, local_files_only=True, **only)
    except hub.errors.LocalEntryNotFoundError:
        return None
    needs_tokenizer = needs_tokenizer and _may_have_tokenizer(name, Path(folder).name)
    return Path(folder) if is_complete(Path(folder), needs_tokenizer, needs_weights) else None


def _may_have_tokenizer(name: str, commit: str) -> bool:
    """By the list of a model's files that newer versions of the client keep in the cache."""
    files = cached_tree(name, Download.kind, commit)
    return files is None or not TOKENIZERS.isdisjoint(files)


def _read_index(path: Path) -> list[str]:
    try:
        return list(map(str, parse_json(path.read_bytes())["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"Delete the model from the cache, and download it again; {path} is no index.") from None
