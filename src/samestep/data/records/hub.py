"""Records of a dataset of the Hugging Face Hub: its files are downloaded, and read like any others.

    org/name    org/name@revision    org/name:config:split    hub:org/name:split

Nothing of a dataset is executed: one that has a loading script is refused. Which files a split has is what its card
says, or what the files are called.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from samestep.core.errors import UserError, first_line, quoted
from samestep.core.paths import expand_home
from samestep.data.records.lines import is_record_file

_CLIENTS = ("httpx", "httpcore", "requests", "urllib3", "huggingface_hub", "hf_xet")
"""Where errors of the network come from."""
_PREFIX = "hub:"
_NAME = re.compile(r"(?:hub:)?([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([^@:\s]+))?(?::([^:\s]+))?(?::([^:\s]+))?")
_CARD = "README.md"
_SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""What a split is called in the names of files and folders."""
_DEFAULT = "default"
_DATA_FOLDERS = ("data",)
"""Folders that are no configuration."""


@dataclass(frozen=True)
class HubDataset:
    """A dataset as a user names it."""

    name: str
    revision: str = "main"
    parts: tuple[str, ...] = ()
    """A configuration, a split, or both."""

    def __str__(self) -> str:
        revision = "" if self.revision == "main" else f"@{self.revision}"
        return ":".join([f"{self.name}{revision}", *self.parts])


def hub_dataset(path: str) -> HubDataset | None:
    """The dataset that a path names; None for a path on disk."""
    match = _NAME.fullmatch(path)
    if match is None:
        return None
    is_local = expand_home(path).exists() or (is_record_file(Path(match[1])) and not path.startswith(_PREFIX))
    return None if is_local else HubDataset(match[1], match[2] or "main", tuple(filter(None, (match[3], match[4]))))


@cache
def download_records(dataset: HubDataset) -> list[Path]:
    """The files of a dataset's split, in their order. They are downloaded once for each host; a process asks once."""
    hub = _hub()
    with _sentences(dataset, hub):
        info = hub.HfApi().dataset_info(dataset.name, revision=dataset.revision)
        files = sorted(file.rfilename for file in info.siblings)
        _refuse_script(dataset, files)
        configs = _configs_of_card(_fetch(hub, dataset, info.sha, _CARD)) if _CARD in files else {}
        chosen = _choose(dataset, configs or _configs_by_name(files), files)
        return [_fetch(hub, dataset, info.sha, name) for name in chosen]


def _fetch(hub: Any, dataset: HubDataset, commit: str, name: str) -> Path:
    return Path(hub.hf_hub_download(dataset.name, name, repo_type="dataset", revision=commit))


def _refuse_script(dataset: HubDataset, files: Sequence[str]) -> None:
    script = f"{dataset.name.rpartition('/')[2]}.py"
    if script in files:
        raise UserError(
            f"Name files of {dataset.name}, or a revision without code such as {dataset.name}@refs/convert/parquet: it "
            f"has a loading script, {script}, which is not run."
        )


Configs = dict[str, dict[str, list[str]]]
"""By configuration and split, patterns of the names of files."""


def _configs_of_card(card: Path) -> Configs:
    """What the card says under `configs`; nothing if it does not."""
    text = card.read_text(encoding="utf-8", errors="replace")
    if not (match := re.match(r"---\s*\n(.*?)\n---", text, re.DOTALL)):
        return {}
    import yaml

    try:
        listed = (yaml.safe_load(match[1]) or {}).get("configs")
        return {
            str(item["config_name"]): _splits_of_card(item["data_files"], item.get("data_dir", ""))
            for item in sorted(listed or [], key=lambda item: not item.get("default", False))
            if "data_files" in item
        }
    except (yaml.YAMLError, AttributeError, KeyError, TypeError):
        return {}


def _splits_of_card(data_files: Any, folder: str) -> dict[str, list[str]]:
    if not isinstance(data_files, list) or not all(isinstance(item, dict) for item in data_files):
        data_files = [{"split": "train", "path": data_files}]
    found: dict[str, list[str]] = {}
    for item in data_files:
        paths = item["path"] if isinstance(item["path"], list) else [item["path"]]
        found.setdefault(str(item["split"]), []).extend(str(PurePosixPath(folder) / str(path)) for path in paths)
    return found


def _configs_by_name(files: Sequence[str]) -> Configs:
    """By the first folder, and by the words in the names; files without such a word are for training."""
    found: Configs = {}
    for name in files:
        path = PurePosixPath(name)
        if not is_record_file(Path(name)) or any(part.startswith(".") for part in path.parts):
            continue
        top = path.parts[0] if len(path.parts) > 1 else _DEFAULT
        config = _DEFAULT if top in _DATA_FOLDERS or _split_of(top) else top
        found.setdefault(config, {}).setdefault(_split_of(name) or "train", []).append(name)
    return found


def _split_of(name: str) -> str | None:
    words = re.split(r"[^a-z]+", name.lower())
    return next((split for split, known in _SPLITS.items() if any(word in known for word in words)), None)


def _choose(dataset: HubDataset, configs: Configs, files: Sequence[str]) -> list[str]:
    """The files of the configuration and the split that are named, or of the only ones."""
    if not configs:
        raise UserError(f"Name another dataset; {dataset.name} has no files with records.")
    parts = list(dataset.parts)
    config = parts.pop(0) if parts and (len(parts) > 1 or parts[0] in configs) else None
    if config is None:
        config = next(
            (name for name in (_DEFAULT, *configs) if name in configs and (name == _DEFAULT or len(configs) == 1)), None
        )
    if config not in configs:
        example = f"{dataset.name}:{next(iter(configs))}"
        raise UserError(f"Name a configuration of {dataset.name}, as {example}; it has {quoted(configs)}.")
    splits = configs[config]
    split = parts[0] if parts else "train" if "train" in splits or len(splits) > 1 else next(iter(splits))
    if split not in splits:
        raise UserError(f"Name a split of {dataset}, as {dataset.name}:{next(iter(splits))}; it has {quoted(splits)}.")
    found = [name for name in files if is_record_file(Path(name)) and any(fnmatch(name, p) for p in splits[split])]
    if not found:
        raise UserError(f"Name another split of {dataset.name}; {split!r} of {config!r} has no files with records.")
    return found


@contextmanager
def _sentences(dataset: HubDataset, hub: Any) -> Iterator[None]:
    """What goes wrong with the Hub is said in a sentence."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.ERROR)  # it repeats every failed attempt with its address
    try:
        yield
    except UserError:
        raise
    except hub.errors.RepositoryNotFoundError:
        raise UserError(
            f"Check the name, or log in with `hf auth login` or HF_TOKEN if it is private; there is no file or folder "
            f"{dataset.name} (from {Path.cwd()}), and no dataset {dataset.name} to be seen at {hub.constants.ENDPOINT}."
        ) from None
    except hub.errors.RevisionNotFoundError:
        raise UserError(f"Name another revision; {dataset.name} has no {dataset.revision}.") from None
    except Exception as problem:
        is_of_client = type(problem).__module__.startswith(_CLIENTS)
        if not (is_of_client or isinstance(problem, OSError | ValueError | RuntimeError)):
            raise
        raise UserError(
            f"Connect to a network, or name a file; the dataset {dataset.name} cannot be read from "
            f"{hub.constants.ENDPOINT}: {first_line(problem).rstrip('.')}."
        ) from None
    finally:
        logger.setLevel(before)


def _hub() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError:
        raise UserError('Datasets of the Hub need huggingface_hub: pip install "samestep[hf]"') from None
    return huggingface_hub
