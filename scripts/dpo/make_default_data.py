#!/usr/bin/env python
"""Write the data that `samestep train dpo` makes when it is given none: ideal helices and strands, and 64 pairs.

    python scripts/dpo/make_default_data.py data/ideal
    samestep train dpo --train_data data/ideal/pairs.json

Needs gemmi (pip install "samestep[protein]"). The files are the same each time.
"""

import argparse
from pathlib import Path

from samestep.recipes.dpo.default_pairs import default_records


def main() -> None:
    """Write the structures and the records, and say where they are."""
    parser = argparse.ArgumentParser(description="Write ideal backbones and preference pairs for them.")
    parser.add_argument("folder", type=Path)
    print(default_records(parser.parse_args().folder))


if __name__ == "__main__":
    main()
