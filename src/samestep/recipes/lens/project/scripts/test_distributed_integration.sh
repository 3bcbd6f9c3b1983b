#!/usr/bin/env bash
# test_distributed_integration.sh [number of processes]: is everything here fit to train a lens on several processes?
# Checks the machine, trains all stages briefly with one process and with several (2), and compares the two runs. It takes
# a few minutes and works in a temporary folder. `samestep verify lens` is the full proof, with kills and other numbers.
set -euo pipefail
if ! [[ "${1:-2}" =~ ^[1-9][0-9]*$ ]]; then
    echo "usage: $(basename "$0") [number of processes]" >&2
    exit 2
fi
count=${1:-2}
python=${PYTHON:-python}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

echo "1. gradients and messages of $count processes"
"$python" -P -m samestep doctor --test ddp --nproc "$count" --device cpu > doctor.txt || { cat doctor.txt; exit 1; }

for number in 1 "$count"; do
    echo "2. all stages with $number process(es)"
    "$python" -P -m samestep train lens --nproc "$number" --preset verify distributed=cpu log.every=1 \
        --no-log.tensorboard name="with_$number" > "train_$number.txt" || { cat "train_$number.txt"; exit 1; }
done

echo "3. the same run"
"$python" - with_1 "with_$count" << 'END'
import json
import math
import sys


def losses(name: str) -> dict[tuple[str, int, str], float]:
    """Every loss and validation metric, by stage, step and name."""
    rows = [json.loads(line) for line in open(f"runs/{name}/metrics.jsonl")]
    kept = [(row, key) for row in rows for key in row if key.endswith("loss") or key.startswith("val/")]
    return {(row["stage"], row["step"], key): row[key] for row, key in kept}


one, several = map(losses, sys.argv[1:])
assert one.keys() == several.keys() and len(one) > 4, f"{len(one)} and {len(several)} losses"
for place, value in one.items():
    assert math.isclose(value, several[place], rel_tol=1e-6, abs_tol=1e-9), f"{place}: {value} and {several[place]}"
print(f"{len(one)} losses and metrics agree to {max(abs(one[place] - several[place]) for place in one):.1e}")
END
echo "passed"
