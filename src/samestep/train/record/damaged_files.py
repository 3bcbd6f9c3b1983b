"""Reads files of a run of which any may be damaged: what cannot be used is left out, and named in the evidence."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from samestep.core.json_files import DamagedFile, Json, parse_json, read_object

_TAIL = 1 << 17
"""Bytes that are read at the end of a log or of the metrics."""
_LAST_ROWS = 1 << 14
"""Bytes at the end of a file of rows that hold the last one."""
_LATEST = 1e11
"""Times in seconds since 1970 are smaller, and so are all other numbers of interest except for those of bytes."""

Types = Mapping[str, type]
"""The types of fields that are used, by their names."""
STATUS: Types = {
    **dict.fromkeys(("status", "stage", "reason", "after", "kind", "text", "stopped_early"), str),
    **dict.fromkeys(("step", "steps"), int),
}
EVENT: Types = {
    **dict.fromkeys(("kind", "host", "text", "signal", "why"), str),
    **dict.fromkeys(("world", "code", "rank"), int),
    **{"time": float, "restart": bool, "word": dict},
}
STALL: Types = {"time": float, "rank": int, "host": str, "where": str, "sentence": str, "reports": list}
STALLED_RANK: Types = {"rank": int, "state": str, "activity": str, "seconds": float, "where": str}
METRICS: Types = {"stage": str, "step": int}
LOCK: Types = {"host": str, "pid": int}
JOB: Types = {"job": str, "scheduler": str, "script": str, "output": str}


class Reader:
    """Reads the files of one run."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self.damage: dict[str, str] = {}
        """What is wrong with a file, by its path in the run."""

    def object(self, path: Path, types: Types) -> dict[str, Json]:
        """The JSON object in a file, as far as it can be used; empty when there is none."""
        try:
            return self.typed(path, read_object(path), types)
        except DamagedFile as error:
            self.add(path, error.why)
            return {}

    def typed(self, path: Path, data: Json, types: Types) -> dict[str, Json]:
        """The fields of `data`, without those that have another type than they should."""
        if not isinstance(data, dict):
            self.add(path, "it holds other values than it should")
            return {}
        wrong = [name for name, kind in types.items() if not _is_of(data.get(name), kind)]
        if wrong:
            self.add(path, f"{', '.join(wrong)} cannot be used")
        return {name: value for name, value in data.items() if name not in wrong}

    def objects(self, path: Path, data: Json, types: Types) -> list[dict[str, Json]]:
        """The same for each entry of a list."""
        return [self.typed(path, entry, types) for entry in (data if isinstance(data, list) else [])]

    def lines(self, path: Path) -> Sequence[str]:
        """The last lines of a file; the first of them may be cut."""
        return self._text(path, _TAIL).splitlines()

    def rows(self, path: Path, types: Types, most: int | None = _TAIL) -> Iterator[dict[str, Json]]:
        """The rows in the last `most` bytes of a file of JSON lines, all without it. The first line may be cut, and the
        last one may be being written."""
        lines = self._text(path, most).split("\n")  # other line ends may stand inside a text
        for number, line in enumerate(lines):
            try:
                row = parse_json(line)
            except ValueError:
                if 0 < number < len(lines) - 1 or (number == 0 and most is None and len(lines) > 1):
                    self.add(path, "lines in it are not JSON")
                continue
            yield self.typed(path, row, types)

    def last_row(self, path: Path, types: Types) -> dict[str, Json]:
        """The last whole row of a file of JSON lines; empty where there is none."""
        for line in reversed(self._text(path, _LAST_ROWS).split("\n")):
            try:
                return self.typed(path, parse_json(line), types)
            except ValueError:  # being written, or cut
                continue
        return {}

    def _text(self, path: Path, most: int | None) -> str:
        """The last `most` bytes of a file, all without it; empty where there is none."""
        try:
            with open(path, "rb") as file:
                if most is not None:
                    file.seek(max(0, os.fstat(file.fileno()).st_size - most))
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""
        except OSError as error:
            self.add(path, f"it cannot be read ({error.strerror})")
            return ""

    def add(self, path: Path, why: str) -> None:
        """Note what is wrong with a file; the first thing counts."""
        self.damage.setdefault(str(path.relative_to(self._run)), why)


def _is_of(value: Json, kind: type) -> bool:
    """Whether a value is of a type, or null, which stands for a value that is not there."""
    if value is None:
        return True
    if kind is float:
        return type(value) in (int, float) and abs(value) < _LATEST
    return type(value) is kind and not (isinstance(value, int) and abs(value) > _LATEST)
