"""The datasets of the Hub that a configuration names are downloaded before a stage reads them: once on each host."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from samestep.data.records.hub import HubDataset, download_dataset, hub_dataset
from samestep.data.records.reading import RecordsConfig
from samestep.world.world import World


def download_datasets(config: Any, world: World) -> None:
    """Have the files of all datasets in the cache of every host, where each rank then finds them without a request.
    Collective; rank 0 shows a bar, and says which names are datasets."""
    named = [path for records in _records_in(config) for path in records.named_paths()]
    found = [
        [each.name, each.revision, list(each.parts)] for path in dict.fromkeys(named) if (each := hub_dataset(path))
    ]
    for name, revision, parts in world.share(found):  # a path may exist on the disk of another host
        download_dataset(HubDataset(name, revision, tuple(parts)), world)


def _records_in(config: Any) -> Iterator[RecordsConfig]:
    """All settings for records in a configuration."""
    if isinstance(config, RecordsConfig):
        yield config
    elif is_dataclass(config):
        for each in fields(config):
            yield from _records_in(getattr(config, each.name))
