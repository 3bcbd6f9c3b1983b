"""Models by name: a folder on disk, or a model of the Hugging Face Hub, which is downloaded once for all ranks.

    folder = resolve_model("org/name@revision", bench.world)
    folder = resolve_model("org/name", bench.world, weights=False)      # its configuration and its tokenizer alone
    path = find_model(text, bench.world)                                # whatever is on the disk stays what it is

The cache is looked at first. A model that is complete there is used without a request, even if its branch has moved
since; name a commit, or delete it from the cache, to get another one.
"""

from pathlib import Path

from samestep.core.errors import UserError
from samestep.core.json_files import Json
from samestep.core.paths import expand_home
from samestep.models.hub_download import Download, HubModel, hub_model
from samestep.world.hub_download import Progress, download_on_all_hosts
from samestep.world.world import World


def resolve_model(
    name: str, world: World | None = None, progress: Progress | None = None, *, weights: bool = True
) -> Path:
    """The folder of the model that a user named: a local folder, or `org/name` or `org/name@revision` of the Hub.

    Collective, if a world is given: every rank gets the folder of the same files, or raises the same error. `progress`
    is called on rank 0; by default rank 0 shows a bar. Without `weights` none are downloaded.
    """
    world = world or World.single()
    found = world.run_on_all_ranks(f"finding {name}", lambda: _parse(name) if world.is_main else None)[0]
    if found is None:
        return _folder_on_all_hosts(expand_home(name), world)
    return _download(HubModel(*found), world, progress, weights)


def find_model(text: str, world: World | None = None) -> Path:
    """The path of what a user named: a model of the Hub is downloaded, anything else need not be there. Collective, if
    a world is given; rank 0 says which it is."""
    world = world or World.single()
    model = hub_model(text) if world.is_main else None
    found = world.share([model.name, model.revision] if model else None)
    return Path(text) if found is None else _download(HubModel(*found), world)


def _download(model: HubModel, world: World, progress: Progress | None = None, weights: bool = True) -> Path:
    """The folder of a model in the cache of every host."""
    return download_on_all_hosts(str(model), lambda commit: Download(model, commit, weights), world, progress)


def _parse(name: str) -> Json:
    """Name and revision of a model of the Hub; None for a folder."""
    path = expand_home(name)
    if name and path.is_dir():
        return None
    if name and path.exists():
        raise UserError(f"Name the folder of a model, or a model of the Hub such as org/name; {name} is a file.")
    model = hub_model(name)
    if model is None:
        raise UserError(
            f"Name an existing folder, or a model of the Hub as org/name or org/name@revision; {name} is neither "
            f"(from {Path.cwd()})."
        )
    return [model.name, model.revision]


def _folder_on_all_hosts(folder: Path, world: World) -> Path:
    def check() -> None:
        if not folder.is_dir():
            raise UserError(f"Put the folder {folder} on a disk that all hosts see; {world.host} does not have it.")

    world.run_on_all_ranks(f"finding {folder}", check)
    return folder
