#!/usr/bin/env bash
# launch_training.sh [number of GPUs] [data folder] [further flags]: train_llada_pretrained.py on several GPUs.
set -euo pipefail
exec "${PYTHON:-python}" "$(dirname "$0")/train_llada_pretrained.py" \
    --nproc "${1:-auto}" --data_dir "${2:-shakespeare_processed}" "${@:3}"
