#!/usr/bin/env bash
# launch_training.sh [GPUs] [data folder] [further flags]: train_llada_pretrained.py, on 2 GPUs unless you say otherwise.
set -euo pipefail
if [[ $# -gt 0 && ! "$1" =~ ^([1-9][0-9]*|auto)$ ]]; then
    echo "usage: $(basename "$0") [GPUs] [data folder] [further flags, such as --epochs 3]" >&2
    exit 2
fi
echo "available GPUs      $({ nvidia-smi -L 2>/dev/null || true; } | grep -c '^GPU' || true)"
exec torchrun --nproc_per_node="${1:-2}" "$(dirname "$0")/train_llada_pretrained.py" \
    --data_dir "${2:-shakespeare_processed}" "${@:3}"
