#!/usr/bin/env python
"""Write pairs for real structures: the sequence in the file is preferred to one in which 30% of the letters are others.

    pip download --no-deps --no-binary :all: MDAnalysisTests && tar xzf mdanalysistests-*.tar.gz
    python benchmarks/make_real_pairs.py mdanalysistests-*/MDAnalysisTests/data/dssp pairs.json
    samestep train dpo --train_data pairs.json

Takes every .pdb, .ent, .cif and .mmcif file of the folder, gzipped or not, with at least 20 residues. Each gets --pairs
pairs, with different mutations. Needs gemmi (pip install "samestep[protein]"). The same seed gives the same file.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import numpy as np

from samestep import UserError, noise
from samestep.recipes.dpo.designs import Design, choose_design
from samestep.recipes.dpo.structures import AMINO_ACIDS, read_structure

MUTATE = noise.purpose("dpo.real_pairs")
ENDINGS = tuple(ending + packed for ending in (".pdb", ".ent", ".cif", ".mmcif") for packed in ("", ".gz"))


def mutated(design: Design, share: float, *key: int) -> str:
    """The native sequence with a share of its scored letters replaced by others, chosen by the key."""
    letters = np.array(list(design.native))
    places = np.flatnonzero(design.scored)
    order = np.argsort(noise.words(MUTATE, *key, 0, places)[1], kind="stable")
    for place in places[order][: max(1, round(share * len(places)))]:
        others = AMINO_ACIDS.replace(str(letters[place]), "")
        letters[place] = others[int(noise.scale(noise.words(MUTATE, *key, 1, int(place)), len(others)))]
    return "".join(letters)


def main() -> None:
    """Write the records, and say which files were left out."""
    parser = argparse.ArgumentParser(description="Write preference pairs for the structures in a folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pairs", type=int, default=1, help="pairs for each structure")
    parser.add_argument("--share", type=float, default=0.3, help="share of the letters that are mutated")
    parser.add_argument("--shortest", type=int, default=20, help="leave out structures with fewer residues")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    records = []
    for number, file in enumerate(sorted(f for f in options.folder.iterdir() if f.name.endswith(ENDINGS))):
        try:
            design = choose_design(read_structure(file, None), {})
        except UserError as problem:
            print(f"left out: {problem}", file=sys.stderr)
            continue
        if np.count_nonzero(design.scored) < options.shortest:
            print(f"left out: {file.name} has fewer than {options.shortest} residues to score", file=sys.stderr)
            continue
        for pair in range(options.pairs):
            other = mutated(design, options.share, options.seed, number, pair)
            path = os.path.relpath(file, options.out.parent)
            records.append({"pdb_file": path, "preferred_seq": design.native, "unpreferred_seq": other})
    options.out.write_text(json.dumps(records, indent=1) + "\n")
    print(f"{options.out}: {len(records)} pairs")


if __name__ == "__main__":
    main()
