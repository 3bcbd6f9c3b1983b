"""Files of the Hugging Face Hub on the disk of this host: found in the cache, or downloaded into it.

The Hub's own client downloads, and keeps its cache. What is wanted, and when it is all there, is for each kind of
repository to say. Whatever goes wrong becomes one sentence.
"""

import io
import logging
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from samestep.core.disk_space import existing_folder, is_disk_full
from samestep.core.errors import RunFailed, UserError

_CLIENTS = ("httpx", "httpcore", "requests", "urllib3", "hf_xet", "huggingface_hub")
"""How the packages are named whose errors mean a broken or missing connection; versions of the client use others."""


class HubDownload(ABC):
    """Finds files of a repository in the cache of this host, or downloads them; calling it gives the commit."""

    kind: ClassVar[str]
    """As the client calls it: model or dataset."""
    local: ClassVar[str]
    """What a user may name instead."""

    def __init__(self, label: str, name: str, revision: str) -> None:
        """`label` is what the user wrote."""
        self.label, self.name, self.revision = label, name, revision
        self._sizes: dict[str, int] = {}
        self._wanted: Sequence[str] = ()
        self._there = 0
        self._bars: list[Any] = []

    @abstractmethod
    def find(self, downloaded: bool = False) -> Path | None:
        """The folder in the cache, if everything is there; nothing is asked from the network. What was `downloaded` by
        this program is known to have all that there is."""

    @abstractmethod
    def _download(self, hub: Any) -> Path:
        """Download what is missing; the folder that it is in."""

    def bytes(self) -> tuple[int, int]:
        """The bytes that are there, and those that are wanted, which is 0 until that is known."""
        wanted = sum(self._sizes[name] for name in self._wanted)
        arrived = max((int(bar.n) for bar in list(self._bars)), default=0)  # one counts the network, one the disk
        return min(self._there + arrived, wanted), wanted

    def __call__(self) -> str:
        hub = import_hub(f"{self.kind.capitalize()}s")
        try:
            folder = self.find()
            if folder is None:
                with _quiet_hub():
                    folder = self._download(hub)
        except Exception as error:
            raise self._as_sentence(error, hub) from None
        return folder.name

    def _fetch_wanted(self, hub: Any, folder: Path, wanted: Sequence[str]) -> Path:
        """Download what `folder` lacks of the files that are wanted in the end, which progress is measured by."""
        self._there = sum(self._sizes[name] for name in wanted if (folder / name).exists())
        self._wanted = sorted(wanted)
        folder = self._fetch(hub, self.revision, self._wanted)
        self._there = sum(self._sizes[name] for name in wanted)
        if self.find(downloaded=True) is None:
            raise RunFailed(f"{self.label} is not complete in {folder}; start again, and what is missing is downloaded")
        return folder

    def _fetch(self, hub: Any, revision: str, names: Sequence[str]) -> Path:
        """Download files that the cache does not have; the folder that they are in."""
        self._check_space(hub, names)
        folder = hub.snapshot_download(
            self.name,
            repo_type=self.kind,
            revision=revision,
            allow_patterns=list(names),
            tqdm_class=_byte_counter(self._bars),
        )
        self._bars.clear()
        return Path(folder)

    def _check_space(self, hub: Any, names: Sequence[str]) -> None:
        cache = Path(hub.constants.HF_HUB_CACHE)
        missing = sum(self._sizes[name] for name in names) - self._there
        free = shutil.disk_usage(existing_folder(cache)).free
        if missing > free:
            raise UserError(
                f"Free some space, or set HF_HOME to a folder on a larger disk; {self.label} needs "
                f"{missing / 1e9:.1f} GB more, and {cache} has {free / 1e9:.1f} GB."
            )

    def _as_sentence(self, error: Exception, hub: Any) -> Exception:
        """What the user is told; an error of another kind is a bug, and is left as it is."""
        if isinstance(error, UserError):
            return error
        label, name, local = self.label, self.name, self.local
        endpoint, cache = hub.constants.ENDPOINT, hub.constants.HF_HUB_CACHE
        place = "" if self.kind == "model" else f"{self.kind}s/"
        cause = error.__cause__ if isinstance(error, hub.errors.LocalEntryNotFoundError) else None
        error = cause if isinstance(cause, Exception) else error
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, hub.errors.OfflineModeIsEnabled):
            return UserError(
                f"Unset HF_HUB_OFFLINE, or name a {local}; {label} is not complete in {cache}, and no {local} from "
                f"{Path.cwd()}."
            )
        if isinstance(error, hub.errors.GatedRepoError) or status == 403:
            return UserError(
                f"Ask for access at {endpoint}/{place}{name}, and log in with `hf auth login` or HF_TOKEN; {label} may "
                "not be downloaded without."
            )
        if isinstance(error, hub.errors.RevisionNotFoundError):
            return UserError(f"Name another revision; {name} has no {self.revision} at {endpoint}.")
        if isinstance(error, hub.errors.RepositoryNotFoundError) or status == 401:
            return UserError(
                f"Check the name, or log in with `hf auth login` or HF_TOKEN if it is private; there is no {local} "
                f"{label} (from {Path.cwd()}), and no {self.kind} {name} to be seen at {endpoint}."
            )
        if status is not None:
            return RunFailed(f"{label} was not downloaded, since {endpoint} answered with {status}; try again later")
        if is_disk_full(error):
            return UserError(f"Free some space, or set HF_HOME to a folder on a larger disk; {cache} is full.")
        if isinstance(error, OSError) and error.errno and not isinstance(error, ConnectionError | TimeoutError):
            return UserError(
                f"Set HF_HOME to a folder that you can write to; {label} cannot be kept in {cache} ({error.strerror})."
            )
        if isinstance(error, hub.errors.HFValidationError):
            return UserError(f"Name an existing {local}, or a {self.kind} of the Hub as org/name; {label} is neither.")
        # Of the client for large files, errors are plain RuntimeErrors.
        if isinstance(error, OSError) or type(error) is RuntimeError or type(error).__module__.startswith(_CLIENTS):
            return self._broken(type(error).__name__, endpoint, cache)
        return error

    def _broken(self, kind: str, endpoint: str, cache: str) -> Exception:
        if self._sizes:
            return RunFailed(
                f"the connection to {endpoint} broke while {self.label} was downloaded ({kind}); start again, and the "
                "files that are complete are kept"
            )
        return UserError(
            f"Connect to a network, or name a {self.local}; {self.label} is not complete in {cache}, no "
            f"{self.local} from {Path.cwd()}, and {endpoint} cannot be reached ({kind})."
        )


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


def import_hub(what: str = "Models") -> Any:
    """The client of the Hub, which is an extra."""
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError:
        raise UserError(f'{what} of the Hub need huggingface_hub: pip install "samestep[hf]"') from None
    return huggingface_hub


def cached_tree(name: str, kind: str, revision: str) -> Mapping[str, int] | None:
    """The sizes of all files of a repository, by name, if the client has kept their list; newer versions do."""
    hub = import_hub()
    try:
        return {file.path: file.size for file in hub.get_cached_repo_tree(name, repo_type=kind, revision=revision)}
    except (AttributeError, getattr(hub.errors, "CachedRepoTreeNotFoundError", AttributeError)):
        return None
