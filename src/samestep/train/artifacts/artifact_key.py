"""What an artifact was computed from, so that it is never used for anything else.

    key = ArtifactKey.make(
        bench.world,
        "the teacher's vectors",
        values={"texts": digest, "length": 512},
        files={"weights": {"model.safetensors": folder / "model.safetensors"}, "tokenizer": {...}},
        otherwise="start a new run that computes them",
    )
    bench.array_artifact("vectors", rows, fields, key=key)                 # in the stage that computes it
    bench.read_array_artifact("vectors", stage="teacher", key=key)         # in stages that use it

The key is stored with the artifact. It is compared when the stage that writes the artifact is resumed, whenever the
artifact is read with a key, and when the stage is taken over by another run. The first two refuse it in a sentence that
names the difference; the last computes it again.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from samestep.core.errors import UserError
from samestep.core.json_files import Json, expected_content, find_object
from samestep.train.artifacts.array_format import LAYOUT
from samestep.train.artifacts.file_hashes import hash_files
from samestep.world.world import World

KEY = "key"
"""Where arrays.json has it."""
_LONGEST = 60
"""Characters of values that are shown; longer ones are hashes, mostly."""


class HashedFile(NamedTuple):
    """A file, and the hash of its content."""

    path: Path
    hash: str


@dataclass(frozen=True)
class ArtifactKey:
    """All that the values of an artifact follow from, beside the code. Each part has a name that fits in a sentence:
    "computed with another tokenizer", "with other weights"."""

    what: str
    """The values, in the plural: `the teacher's vectors`."""
    values: Mapping[str, Json]
    """What decides them beside files, by name, as JSON: the layer, the length of a text."""
    files: Mapping[str, Mapping[str, HashedFile]] = field(default_factory=dict)
    """By part, its files; each by a name that stays when a folder is moved."""
    otherwise: str = "start a new run"
    """What to do where they were computed from something else."""

    @classmethod
    def make(
        cls,
        world: World,
        what: str,
        *,
        values: Mapping[str, Json],
        files: Mapping[str, Mapping[str, Path]] | None = None,
        otherwise: str = "start a new run",
    ) -> "ArtifactKey":
        """With hashes of whole files, which the ranks read together, once a launch. Collective."""
        named = {part: dict(sorted(own.items())) for part, own in (files or {}).items()}
        hashes = iter(hash_files([path for own in named.values() for path in own.values()], world))
        hashed = {part: {name: HashedFile(p, next(hashes)) for name, p in own.items()} for part, own in named.items()}
        return cls(what, json.loads(json.dumps(values)), hashed, otherwise)  # as they come back from a file

    @property
    def parts(self) -> dict[str, Json]:
        """What is compared."""
        hashes = {part: {name: file.hash for name, file in own.items()} for part, own in self.files.items()}
        return {**self.values, **hashes}

    def to_json(self, artifacts: Path) -> dict[str, Json]:
        """As it is stored. Files in `artifacts`, the folder of its run, are stored by their place in it."""

        def stored(path: Path) -> str:
            path, inside = path.absolute(), artifacts.absolute()
            return str(path.relative_to(inside) if path.is_relative_to(inside) else path)

        files = {part: {n: [stored(f.path), f.hash] for n, f in own.items()} for part, own in self.files.items()}
        return {"what": self.what, "values": dict(self.values), "files": files}

    @classmethod
    def read(cls, artifact: Path, artifacts: Path | None = None) -> "ArtifactKey | None":
        """The key that is stored with an array artifact, if it has one. `artifacts` is where files of its run are
        looked for, by default in the same run."""
        record = (find_object(artifact / LAYOUT) or {}).get(KEY)
        if record is None:
            return None
        base = (artifacts or artifact.parent.parent).absolute()
        with expected_content(artifact / LAYOUT):
            files = {
                part: {name: HashedFile(base / path, hash) for name, (path, hash) in own.items()}
                for part, own in record["files"].items()
            }
            return cls(str(record["what"]), dict(record["values"]), files)

    def refuse_other(self, artifact: Path, *, whole: bool = False) -> None:
        """Refuse an array artifact that was computed from something else. What this key leaves out is not compared,
        unless the `whole` of it must be the same."""
        known = self.read(artifact)
        if known is None:
            raise UserError(f"{artifact} does not say what {self.what} were computed with; {self.otherwise}")
        compared = {**known.parts, **self.parts} if whole else self.parts
        differences = _differences(compared, known.parts, self.parts)
        if differences:
            raise UserError(f"{self.what} in {artifact} were computed with {differences}; {self.otherwise}")


def changed_inputs(stage: Path, artifacts: Path, world: World) -> str:
    """How files have changed since the array artifacts in the folder of a stage were computed from them; empty if they
    have not. `artifacts` is the folder of the run that would take the stage over. Collective."""

    def read() -> Json:
        found = sorted(stage.glob(f"[!.]*/{LAYOUT}")) if world.is_main else []
        return [_files_now(key) for path in found if (key := ArtifactKey.read(path.parent, artifacts))]

    for what, known, present in world.run_on_all_ranks(f"reading {stage}", read)[0]:
        files = {part: {name: Path(path) for name, path in own.items()} for part, own in present.items()}
        now = ArtifactKey.make(world, what, values={}, files=files)
        if differences := _differences(known, known, now.parts):
            return f"{what} there were computed with {differences}"
    return ""


def _files_now(key: ArtifactKey) -> Json:
    """What a stored key is about, the hashes of its files, and the paths of those that are still there."""
    known = {part: own for part, own in key.parts.items() if part in key.files}
    there = {part: {n: str(f.path) for n, f in own.items() if f.path.is_file()} for part, own in key.files.items()}
    return [key.what, known, there]


def _differences(names: Iterable[str], known: Mapping[str, Json], now: Mapping[str, Json]) -> str:
    """What artifacts were computed with and would not be now: `another length (16 instead of 32)`."""
    found = []
    for name in names:
        before, after = known.get(name), now.get(name)
        if before != after:
            other = "other" if name.endswith("s") else "another"
            found.append(f"{other} {name}{_detail(before, after)}")
    return " and ".join(found)


def _detail(before: Json, after: Json) -> str:
    """In which files, or in which value, two parts differ."""
    if before is None or after is None:
        return ""
    if isinstance(before, dict) and isinstance(after, dict):
        names = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
        return f" ({', '.join(f'{name} {_state(name, before, after)}' for name in names)})"
    shown = [json.dumps(value, ensure_ascii=False) for value in (before, after)]
    return "" if max(map(len, shown)) > _LONGEST else f" ({shown[0]} instead of {shown[1]})"


def _state(name: str, before: Mapping[str, Json], after: Mapping[str, Json]) -> str:
    if name not in before:
        return "is new"
    return "differs" if name in after else "is gone"
