#!/usr/bin/env bash
# submit.sh [options and settings]: train as a job of SLURM, which is queued again when its time is over.
#
#     ./submit.sh --nodes 2 --gpus-per-node 4 --time 02:00:00 name=first
#     ./submit.sh --dry-run                       # prints the job
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
exec samestep submit "$here/recipe.py" --on slurm --config "$here/settings.yaml" "$@"
