"""A model of the Hugging Face Hub on the disk of this host: found in the cache, or downloaded into it.

Weights are downloaded last, so an interrupted download never looks complete; the next one keeps the files that are.
Nothing that is downloaded is executed. Whatever goes wrong becomes one sentence.
"""

import logging
import shutil
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from samestep.core.disk_space import existing_folder, is_disk_full
from samestep.core.errors import RunFailed, UserError
from samestep.core.records import parse_json, read_json_if_readable, write_atomically, write_json
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
_THREADS = 4
_CLIENTS = ("httpx", "httpcore", "requests", "urllib3", "hf_xet", "huggingface_hub")
"""How the packages are named whose errors mean a broken or missing connection; versions of the client use others."""


@dataclass(frozen=True)
class HubModel:
    """A model of the Hub, as a user names it."""

    name: str
    revision: str = "main"

    def __str__(self) -> str:
        return self.name if self.revision == "main" else f"{self.name}@{self.revision}"


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


def is_complete(folder: Path) -> bool:
    """Whether a snapshot in the cache has all files of its model: by our own record, or as far as can be seen."""
    recorded = read_json_if_readable(_record(folder))
    if isinstance(recorded, list):
        return all((folder / name).is_file() for name in recorded) and has_all_modules(folder)
    names = {path.name for path in folder.iterdir() if path.is_file()}
    weights = weight_files(names, folder)
    has_weights = bool(weights) and names.issuperset(weights) and has_all_modules(folder)
    return CONFIG in names and has_weights and not names.isdisjoint(TOKENIZERS)


class Download:
    """Finds a model in the cache of this host, or downloads it; calling it gives the commit."""

    def __init__(self, model: HubModel, commit: str | None = None) -> None:
        self.model, self._revision = model, commit or model.revision
        self._have: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._wanted: list[str] = []

    def bytes(self) -> tuple[int, int]:
        """The bytes that are there, and those that are wanted, which is 0 until the weights are known."""
        return sum(dict(self._have).values()), sum(self._sizes[name] for name in self._wanted)

    def __call__(self) -> str:
        hub = import_hub()
        try:
            folder = find_in_cache(self.model.name, self._revision)
            if folder is None:
                with _quiet_hub():
                    folder = self._download(hub)
        except Exception as error:
            raise self._as_sentence(error, hub) from None
        return folder.name

    def _download(self, hub: Any) -> Path:
        info = hub.HfApi().model_info(self.model.name, revision=self._revision, files_metadata=True)
        sizes = {file.rfilename: file.size or 0 for file in info.siblings}
        modules = module_files(sizes)
        self._sizes = {name: size for name, size in sizes.items() if "/" not in name or name in modules}
        if CONFIG not in self._sizes:
            raise UserError(f"Name another model; {self.model} has no {CONFIG}.")
        small = [name for name in self._sizes if any(fnmatch(name, pattern) for pattern in SMALL)]
        folder = self._fetch(hub, info.sha, small)
        weights = weight_files([name for name in self._sizes if "/" not in name], folder)
        if not weights or not self._sizes.keys() >= set(weights):
            what = (
                "lacks files that its index of weights names"
                if weights
                else "has neither safetensors nor PyTorch weights"
            )
            raise UserError(f"Name another model; {self.model} {what}.")
        weights += [name for name in modules if name not in small]
        self._wanted = small + weights
        self._fetch(hub, info.sha, weights)
        write_json(_record(folder), self._wanted)
        if self.model.revision != info.sha:  # the name leads to this commit only now that all of it is there
            write_atomically(folder.parents[1] / "refs" / self.model.revision, info.sha)
        return folder

    def _fetch(self, hub: Any, commit: str, names: Sequence[str]) -> Path:
        """Download files that the cache does not have, some at a time; the folder that they are in."""
        self._check_space(hub, commit, names)
        found: list[Path] = []

        def fetch(name: str) -> None:
            counter = _byte_counter(self._have, name)
            path = hub.hf_hub_download(self.model.name, name, revision=commit, tqdm_class=counter)
            self._have[name] = self._sizes[name]
            found.append(Path(path).parents[name.count("/")])

        _for_each(fetch, names)
        return found[0]

    def _check_space(self, hub: Any, commit: str, names: Sequence[str]) -> None:
        cache = Path(hub.constants.HF_HUB_CACHE)
        snapshot = _storage(hub, self.model.name) / "snapshots" / commit
        missing = sum(self._sizes[name] for name in names if not (snapshot / name).exists())
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


def find_in_cache(name: str, revision: str) -> Path | None:
    """The folder of a model in the cache, if it is complete there; nothing is asked from the network."""
    hub = import_hub()
    try:
        # Newer versions also compare with the list of files that they have kept.
        only = {"allow_patterns": list(SMALL), "ignore_patterns": ["*/*"]}
        folder = hub.snapshot_download(name, revision=revision, local_files_only=True, **only)
    except hub.errors.LocalEntryNotFoundError:
        return None
    return Path(folder) if is_complete(Path(folder)) else None


def _storage(hub: Any, name: str) -> Path:
    """The folder of all snapshots of a model in the cache."""
    return Path(hub.constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"


def _record(folder: Path) -> Path:
    """The list of the files of a snapshot, written when all of them were there."""
    return folder.parents[1] / "samestep" / f"{folder.name}.json"


def _read_index(path: Path) -> list[str]:
    try:
        return list(map(str, parse_json(path.read_bytes())["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"Delete the model from the cache, and download it again; {path} is no index.") from None


def _for_each(work: Callable[[str], None], names: Sequence[str]) -> None:
    """Some at a time; the first error ends it. A pool of concurrent.futures would keep a stopped process alive."""
    left, errors = deque(names), deque[Exception]()

    def take() -> None:
        while left and not errors:
            try:
                name = left.popleft()
            except IndexError:  # another thread took the last one
                return
            try:
                work(name)
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=take, daemon=True) for _ in range(min(_THREADS, len(names)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _byte_counter(have: dict[str, int], name: str) -> type:
    """What the Hub's client takes for a progress bar of tqdm: counts the bytes of a file, and shows nothing."""

    class Counter:
        def __init__(self, *args: Any, initial: int = 0, **options: Any) -> None:
            have[name] = int(initial)

        def __enter__(self) -> "Counter":
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def update(self, n: float | None = 1) -> None:
            have[name] = have.get(name, 0) + int(n or 0)

        def ignore(self, *args: Any, **options: Any) -> None:
            pass

        close = refresh = set_postfix_str = set_description = set_description_str = ignore
        update_transfer = set_transfer_postfix_str = ignore

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
