"""The files in a model's folder that decide what it computes, by what they are for."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from pathlib import Path

from samestep.models.hub_download import CONFIG, weight_files

FilesByPurpose = Mapping[str, Mapping[str, Path]]
"""By `weights`, `tokenizer` and so on, files by their names in the model's folder."""
_TOKENIZER = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "tekken.json")
_TOKENIZER_MODELS = ("*.model", "*.tiktoken")
_INDEX = ".index.json"


def causal_files(folder: Path, tokenizer_folder: Path | None = None) -> FilesByPurpose:
    """Those of a language model; its tokenizer may be in another folder."""
    own = {"weights": weights_in(folder), "configuration": [folder / CONFIG]}
    tokens = tokenizer_folder or folder
    return {**by_name(folder, own), **by_name(tokens, {"tokenizer": tokenizer_in(tokens)})}


def weights_in(folder: Path) -> list[Path]:
    """The files with the weights, and what says which weights are in which."""
    names = _names(folder)
    found = weight_files(names, folder)
    return [folder / name for name in (*found, *(name for name in names if name.endswith(_INDEX)))]


def has_weights(folder: Path) -> bool:
    """Whether there is any file with weights: of a model of the Hub, they may not have been needed yet."""
    return any((folder / name).is_file() for name in weight_files(_names(folder), folder))


def tokenizer_in(folder: Path) -> list[Path]:
    """The files of the tokenizer."""
    patterns = (*_TOKENIZER, *_TOKENIZER_MODELS)
    return [folder / name for name in _names(folder) if any(fnmatch(name, pattern) for pattern in patterns)]


def by_name(folder: Path, files: Mapping[str, Iterable[Path]]) -> FilesByPurpose:
    """Files that are there, by their names in a folder."""
    return {
        purpose: {str(path.relative_to(folder)): path for path in paths if path.is_file()}
        for purpose, paths in files.items()
    }


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
