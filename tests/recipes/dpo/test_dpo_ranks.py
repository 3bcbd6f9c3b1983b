"""414 records on 4 ranks: every record in one of the two sets, and each of them counted once."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from dpo_runs import validations_of, write_records

from samestep.cli.main import main
from samestep.recipes.dpo.default_pairs import default_records
from samestep.verify.trace import Line, RecordedLaunch, count_ids

pytestmark = pytest.mark.timeout(900)


def many_records(folder: Path, count: int) -> Path:
    """Pairs for the ideal structures, all of them different: the unpreferred sequence begins at another letter."""
    first = json.loads(default_records(folder).read_text())[::4]  # one of each structure, for all its chains
    records = []
    for number in range(count):
        turns, structure = divmod(number, len(first))
        preferred, other = (first[structure][name].replace("/", "") for name in ("preferred_seq", "unpreferred_seq"))
        sequences = {"preferred_seq": preferred, "unpreferred_seq": other[turns:] + other[:turns]}
        records.append({"pdb_file": first[structure]["pdb_file"], **sequences})
    return write_records(folder / "many.json", records)


@pytest.mark.long
def test_414_records_on_4_ranks(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = many_records(tmp_path, 414)
    sizes = ["data.limit=null", "data.validation_fraction=0.1", "global_batch_size=93", "batch_size=24", "max_steps=4"]
    settings = [f"train_data={data}", f"out={tmp_path}", "validate_every=4", "evidence=true", *sizes]
    network = ["reference=live", "model.protein.hidden=8", "model.protein.decoder_layers=1"]
    for ranks, launch in ((1, []), (4, ["--nproc", "4"])):
        names = ["--preset=verify", f"name=ranks_{ranks}"]
        assert main(["train", "dpo", *launch, *names, *settings, *network]) == 0
        assert "372 pairs for training, 42 pairs for validation" in capfd.readouterr().out
    one, four = (validations_of(tmp_path / f"ranks_{ranks}") for ranks in (1, 4))
    assert one == [pytest.approx(four[0], abs=1e-9)], "a rank with another split would validate other rows"
    recorded = RecordedLaunch.read(tmp_path / "ranks_4", 4)
    steps = [step for rank in recorded.ranks for (stage, _), step in rank.items() if stage == "dpo"]
    assert rows(line for step in steps for line in step.updates) == Counter(range(372))
    assert rows(line for step in steps for line in step.validations) == Counter(range(42))


def rows(lines: Iterable[Line]) -> Counter[int]:
    """How often each row was taken."""
    return Counter({row: times for (_, row), times in count_ids(lines).items()})


def test_files_with_weights_are_drawn_alike_on_any_number_of_ranks(tmp_path: Path) -> None:
    records = [{"prompt": f"number {n}", "chosen": f"is {n * n}", "rejected": f"is {n}!"} for n in range(40)]
    for name, part in (("many", records[:30]), ("few", records[30:])):
        (tmp_path / f"{name}.json").write_text(json.dumps(part))
    data = f"train_data=[{tmp_path / 'many.json'}:1,{tmp_path / 'few.json'}:3]"
    settings = [data, f"out={tmp_path}", "data.limit=null", "global_batch_size=8", "batch_size=2", "max_steps=8"]
    drawn = {}
    for ranks, launch in ((1, []), (2, ["--nproc", "2"])):
        names = ["--preset=verify-text", f"name=ranks_{ranks}", "evidence=true", "reference=live"]
        assert main(["train", "dpo", *launch, *names, *settings]) == 0
        recorded = RecordedLaunch.read(tmp_path / f"ranks_{ranks}", ranks)
        steps = [step for rank in recorded.ranks for (stage, _), step in rank.items() if stage == "dpo"]
        drawn[ranks] = count_ids(line for step in steps for line in step.updates)
    assert drawn[1] == drawn[2] and sum(drawn[1].values()) == 64
    times = Counter(row for _, row in drawn[1])
    assert max(times.values()) >= 4 and len(times) > 20, "some of the few come often, many of the others once"
