"""Records of a dataset of the Hugging Face Hub: its files are downloaded, and read like any others.

    org/name    org/name@revision    org/name:config:split    hub:org/name:split

Nothing of a dataset is executed: one that has a loading script is refused. Which files a split has is what its card
says, or what the files are called. The cache is looked at first: what is complete there is used without a request,
even if its branch has moved since; name a commit, or delete it from the cache, to get another one.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from samestep.core.errors import UserError, quoted
from samestep.core.hub_download import HubDownload, cached_tree, import_hub
from samestep.core.paths import expand_home
from samestep.data.records.lines import is_record_file

if TYPE_CHECKING:
    from samestep.world.world import World

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
    """The files of a dataset's split, in their order, for this process alone; it looks once."""
    from samestep.world.world import World

    return download_dataset(dataset, World.single())


def download_dataset(dataset: HubDataset, world: "World") -> list[Path]:
    """The files of a dataset's split, in their order. Collective: each host downloads them once."""
    from samestep.world.hub_download import download_on_all_hosts

    folder = download_on_all_hosts(str(dataset), lambda commit: DatasetDownload(dataset, commit), world)
    return [folder / name for name in _choose(dataset, folder, _files(dataset, folder, downloaded=True) or ())]


class DatasetDownload(HubDownload):
    """Finds the files of a dataset's split in the cache of this host, or downloads them.

    Which files a split has follows from the names of all. Newer versions of the client keep these in the cache; without
    them the Hub is asked, since the files that are there may be a part.
    """

    kind, local = "dataset", "file or folder"

    def __init__(self, dataset: HubDataset, commit: str | None = None) -> None:
        super().__init__(str(dataset), dataset.name, commit or dataset.revision)
        self._dataset = dataset

    def find(self, downloaded: bool = False) -> Path | None:
        hub = import_hub("Datasets")
        try:
            found = hub.snapshot_download(
                self.name, repo_type=self.kind, revision=self.revision, local_files_only=True, allow_patterns=[_CARD]
            )
        except hub.errors.LocalEntryNotFoundError:
            return None
        folder = Path(found)
        files = _files(self._dataset, folder, downloaded)
        if files is None or (_CARD in files and not (folder / _CARD).is_file()):
            return None
        return folder if all((folder / name).is_file() for name in _choose(self._dataset, folder, files)) else None

    def _download(self, hub: Any) -> Path:
        info = hub.HfApi().dataset_info(self.name, revision=self.revision, files_metadata=True)
        self._sizes = {file.rfilename: file.size or 0 for file in info.siblings}
        _refuse_script(self._dataset, self._sizes)
        card = [_CARD] if _CARD in self._sizes else []
        folder = self._fetch(hub, info.sha, card)
        return self._fetch_wanted(hub, folder, [*card, *_choose(self._dataset, folder, sorted(self._sizes))])


def _files(dataset: HubDataset, folder: Path, downloaded: bool) -> list[str] | None:
    """All files of a dataset in their order, if the client has kept their list; else those that were downloaded."""
    files: Iterable[str] | None = cached_tree(dataset.name, DatasetDownload.kind, folder.name)
    if files is None and downloaded:
        files = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return None if files is None else sorted(files)


def _refuse_script(dataset: HubDataset, files: Collection[str]) -> None:
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


def _choose(dataset: HubDataset, folder: Path, files: Sequence[str]) -> list[str]:
    """The files of the configuration and the split that are named, or of the only ones."""
    configs = (_configs_of_card(folder / _CARD) if _CARD in files else {}) or _configs_by_name(files)
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
