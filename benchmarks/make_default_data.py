#!/usr/bin/env python
"""Write the data that `samestep train dpo` makes when it is given none: ideal helices and strands, and 64 pairs.

    python benchmarks/make_default_data.py data/ideal
    samestep train dpo --train_data data/ideal/pairs.json
    python benchmarks/make_default_data.py src/samestep/recipes/dpo/project/data/input \\
        --structures 3 --pairs 138 --name test_data_real.json                   # the data of `samestep new dpo`

Needs gemmi (pip install "samestep[protein]"). The files are the same each time.
"""

import argparse
from pathlib import Path

from samestep.recipes.dpo.default_pairs import PAIRS, STRUCTURES, default_records


def main() -> None:
    """Write the structures and the records, and say where they are."""
    parser = argparse.ArgumentParser(description="Write ideal backbones and preference pairs for them.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--structures", type=int, default=STRUCTURES)
    parser.add_argument("--pairs", type=int, default=PAIRS, help="pairs for each structure")
    parser.add_argument("--name", default="pairs.json", help="file of the records")
    options = parser.parse_args()
    print(default_records(options.folder, options.structures, options.pairs, options.name))


if __name__ == "__main__":
    main()
