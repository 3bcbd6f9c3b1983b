"""A model of the Hugging Face Hub on the disk of this host: found in the cache, or downloaded into it.

The Hub's own client downloads, and keeps its cache; here is chosen what, and looked whether it is all there:
configuration, tokenizer and weights, and no code. Weights as safetensors are preferred to PyTorch's own files, which
are read as data alone. Whatever goes wrong becomes one sentence.
"""

import io
import logging
import re
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from samestep.core.disk_space import existing_folder, is_disk_full
from samestep.core.errors import RunFailed, UserError
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
_CLIENTS = ("httpx", "httpcore", "requests", "urllib3", "hf_xet", "huggingface_hub")
"""How the packages are named whose errors mean a broken or missing connection; versions of the client use others."""


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


class Download:
    """Finds a model in the cache of this host, or downloads it; calling it gives the commit."""

    def __init__(self, model: HubModel, commit: str | None = None, weights: bool = True) -> None:
        """Without `weights` it is the configuration and the tokenizer alone."""
        self.model, self._revision, self._needs_weights = model, commit or model.revision, weights
        self._sizes: dict[str, int] = {}
        self._wanted: list[str] = []
        self._there = 0
        self._bars: list[Any] = []

    def bytes(self) -> tuple[int, int]:
        """The bytes that are there, and those that are wanted, which is 0 until the weights are known."""
        wanted = sum(self._sizes[name] for name in self._wanted)
        arrived = max((int(bar.n) for bar in list(self._bars)), default=0)  # one counts the network, one the disk
        return min(self._there + arrived, wanted), wanted

    def __call__(self) -> str:
        hub = import_hub()
        try:
            folder = find_in_cache(self.model.name, self._revision, needs_weights=self._needs_weights)
            if folder is None:
                with _quiet_hub():
                    folder = self._download(hub)
        except Exception as error:
            raise self._as_sentence(error, hub) from None
        return folder.name

    def _download(self, hub: Any) -> Path:
        info = hub.HfApi().model_info(self.model.name, revision=self._revision, files_metadata=True)
        modules = module_files([file.rfilename for file in info.siblings])
        self._sizes = {
            file.rfilename: file.size or 0
            for file in info.siblings
            if "/" not in file.rfilename or file.rfilename in modules
        }
        if CONFIG not in self._sizes:
            raise UserError(f"Name another model; {self.model} has no {CONFIG}.")
        small = [name for name in self._sizes if any(fnmatch(name, pattern) for pattern in SMALL)]
        if not self._needs_weights:
            return self._fetch(hub, self._revision, small)
        folder = self._fetch(hub, info.sha, small)
        wanted = {*small, *self._weights(folder), *modules}
        self._there = sum(self._sizes[name] for name in wanted if (folder / name).exists())
        self._wanted = sorted(wanted)
        folder = self._fetch(hub, self._revision, self._wanted)
        self._there = sum(self._sizes[name] for name in wanted)
        if not is_complete(folder, needs_tokenizer=False):
            raise RunFailed(f"{self.model} is not complete in {folder}; start again, and what is missing is downloaded")
        return folder

    def _weights(self, folder: Path) -> list[str]:
        found = weight_files([name for name in self._sizes if "/" not in name], folder)
        if not found:
            raise UserError(f"Name another model; {self.model} has neither safetensors nor PyTorch weights.")
        if not self._sizes.keys() >= set(found):
            raise UserError(f"Name another model; {self.model} lacks files that its index of weights names.")
        return found

    def _fetch(self, hub: Any, revision: str, names: Sequence[str]) -> Path:
        """Download files that the cache does not have; the folder that they are in."""
        self._check_space(hub, names)
        counter = _byte_counter(self._bars)
        folder = hub.snapshot_download(
            self.model.name, revision=revision, allow_patterns=list(names), tqdm_class=counter
        )
        self._bars.clear()
        return Path(folder)

    def _check_space(self, hub: Any, names: Sequence[str]) -> None:
        cache = Path(hub.constants.HF_HUB_CACHE)
        missing = sum(self._sizes[name] for name in names) - self._there
        free = shutil.disk_usage(existing_folder(cache)).free
        if missing > free:
            raise UserError(
                f"Free some space, or set HF_HOME to a folder on a larger disk; {self.model} needs "
                f"{missing / 1e9:.1f} GB more, and {cache} has {free / 1e9:.1f} GB."
            )

    def _as_sentence(self, error: Exception, hub: Any) -> Exception:
        """What the user is told; an error of another kind is a bug, and is left as it is."""
        if isinstance(error, UserError):
            return error
        model, endpoint, cache = self.model, hub.constants.ENDPOINT, hub.constants.HF_HUB_CACHE
        cause = error.__cause__ if isinstance(error, hub.errors.LocalEntryNotFoundError) else None
        error = cause if isinstance(cause, Exception) else error
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, hub.errors.OfflineModeIsEnabled):
            return UserError(f"Unset HF_HUB_OFFLINE, or name a folder; {model} is not complete in {cache}.")
        if isinstance(error, hub.errors.GatedRepoError) or status == 403:
            return UserError(
                f"Ask for access at {endpoint}/{model.name}, and log in with `hf auth login` or HF_TOKEN; {model} may "
                "not be downloaded without."
            )
        if isinstance(error, hub.errors.RevisionNotFoundError):
            return UserError(f"Name another revision; {model.name} has no {self._revision} at {endpoint}.")
        if isinstance(error, hub.errors.RepositoryNotFoundError) or status == 401:
            return UserError(
                f"Check the name, or log in with `hf auth login` or HF_TOKEN if it is private; there is no folder "
                f"{model} (from {Path.cwd()}), and no model {model.name} to be seen at {endpoint}."
            )
        if status is not None:
            return RunFailed(f"{model} was not downloaded, since {endpoint} answered with {status}; try again later")
        if is_disk_full(error):
            return UserError(f"Free some space, or set HF_HOME to a folder on a larger disk; {cache} is full.")
        if isinstance(error, OSError) and error.errno and not isinstance(error, ConnectionError | TimeoutError):
            return UserError(
                f"Set HF_HOME to a folder that you can write to; {model} cannot be kept in {cache} ({error.strerror})."
            )
        if isinstance(error, hub.errors.HFValidationError):
            return UserError(f"Name an existing folder, or a model of the Hub as org/name; {model} is neither.")
        # Of the client for large files, errors are plain RuntimeErrors.
        if isinstance(error, OSError) or type(error) is RuntimeError or type(error).__module__.startswith(_CLIENTS):
            return self._broken(type(error).__name__, endpoint, cache)
        return error

    def _broken(self, kind: str, endpoint: str, cache: str) -> Exception:
        if self._sizes:
            return RunFailed(
                f"the connection to {endpoint} broke while {self.model} was downloaded ({kind}); start again, and the "
                "files that are complete are kept"
            )
        return UserError(
            f"Connect to a network, or name a folder; {self.model} is not complete in {cache}, and {endpoint} cannot "
            f"be reached ({kind})."
        )


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
    needs_tokenizer = needs_tokenizer and _may_have_tokenizer(hub, name, Path(folder).name)
    return Path(folder) if is_complete(Path(folder), needs_tokenizer, needs_weights) else None


def _may_have_tokenizer(hub: Any, name: str, commit: str) -> bool:
    """By the list of a model's files that newer versions of the client keep in the cache."""
    try:
        return not TOKENIZERS.isdisjoint(file.path for file in hub.get_cached_repo_tree(name, revision=commit))
    except (AttributeError, getattr(hub.errors, "CachedRepoTreeNotFoundError", AttributeError)):
        return True


def _read_index(path: Path) -> list[str]:
    try:
        return list(map(str, parse_json(path.read_bytes())["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"Delete the model from the cache, and download it again; {path} is no index.") from None


def _byte_counter(bars: list[Any]) -> type:
    """A progress bar for the Hub's client that shows nothing; those that count bytes are put into `bars`."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    class Counter(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "file": io.StringIO(), "disable": False})
            if options.get("unit") == "B":
                bars.append(self)

    return Counter


@contextmanager
def _quiet_hub() -> Iterator[None]:
    """Without the client's own warnings, which repeat every failed attempt with its address."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def import_hub() -> Any:
    """The client of the Hub, which is an extra."""
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError:
        raise UserError('Models of the Hub need huggingface_hub: pip install "samestep[hf]"') from None
    return huggingface_hub
