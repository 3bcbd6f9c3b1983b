"""Where rank 0 writes samples: samples.jsonl and its pictures in the run directory, and from there every sink.

After a resume, rows after the checkpoint are cut off, and a row that is already there is not written again. What is
written is bounded: so many samples of each name and step, and so many bytes of a run.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from samestep.core.arguments import described
from samestep.core.errors import UserError
from samestep.core.json_files import Json, JsonLines, atomic_file
from samestep.core.rundir import RunDir
from samestep.train.logging.images import image_array, png_file
from samestep.train.logging.sinks import Sink
from samestep.train.record.samples import KINDS, Image, Sample, Text

logger = logging.getLogger(__name__)
MOST_BYTES = 256 << 20
"""Of all samples of a run; what comes later is not written."""


class SampleLog:
    """The samples of one stage, continued after `step`; at most `most` of each name in a step."""

    def __init__(self, rundir: RunDir, stage: str, step: int, most: int) -> None:
        self._rundir, self._stage, self._most = rundir, stage, most
        self.sinks: list[Sink] = []
        """What else gets the rows; opened after samples.jsonl was cut back."""
        self._lines = JsonLines(rundir.samples)
        self._lines.keep(lambda row: row["stage"] != stage or row["step"] <= step)
        rows = [row for row in self._lines if row["stage"] == stage]
        self._known = Counter((row["step"], row["name"]) for row in rows)
        self._written: Counter[tuple[int, str]] = Counter()
        """Of this launch, by step and name: what is written again after a resume is known already."""
        _remove_others(rundir.sample_images(stage), {str(row.get("image")) for row in rows}, rundir.path)
        self._room = MOST_BYTES - _size_of(rundir)

    def write(self, step: int, name: str, given: Sequence[Sample | str]) -> None:
        """Write samples after `step` steps."""
        rows = list(self._new_rows(step, name, [_as_sample(name, sample) for sample in given]))
        for row in rows:
            self._lines.append(row)
        for sink in self.sinks if rows else []:
            sink.write_samples(rows)

    def close(self) -> None:
        """Close the file, and all sinks."""
        self._lines.close()
        for sink in self.sinks:
            sink.close()

    def _new_rows(self, step: int, name: str, given: Sequence[Sample]) -> Iterator[dict[str, Json]]:
        key = step, name
        for sample in given:
            self._written[key] += 1
            if not self._known[key] < self._written[key] <= self._most or self._room <= 0:
                continue
            row = {"stage": self._stage, "step": step, "name": name, "kind": sample.kind, **sample.fields()}
            if isinstance(sample, Image):
                row["image"] = self._write_image(step, name, sample)
            self._room -= len(str(row))
            if self._room <= 0:
                logger.warning("samples of this run have reached %d MiB; no more are written", MOST_BYTES >> 20)
            yield row

    def _write_image(self, step: int, name: str, sample: Image) -> str:
        """The picture's file, as a row names it."""
        content = png_file(image_array(name, sample.image))
        folder, number = self._rundir.sample_images(self._stage), 0
        while (path := folder / f"step_{step:08d}_{number}.png").exists():
            number += 1
        with atomic_file(path, sync=False) as file:
            file.write(content)
        self._room -= len(content)
        return str(path.relative_to(self._rundir.path))


def _as_sample(name: str, given: Sample | str) -> Sample:
    if isinstance(given, str):
        return Text(given)
    if not isinstance(given, KINDS):
        kinds = ", ".join(f"samples.{kind.__name__}" for kind in KINDS)
        raise UserError(f"the sample {name!r} is {described(given)}; log a text, or one of {kinds}")
    return given


def _remove_others(folder: Path, named: set[str], run: Path) -> None:
    """Remove the pictures of rows that were cut off."""
    for path in folder.glob("*.png"):
        if str(path.relative_to(run)) not in named:
            path.unlink(missing_ok=True)


def _size_of(rundir: RunDir) -> int:
    """Bytes of all samples of a run."""
    files = [rundir.samples, *rundir.sample_images("").glob("*/*.png")]
    return sum(path.stat().st_size for path in files if path.is_file())
