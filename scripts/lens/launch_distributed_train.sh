#!/usr/bin/env bash
# launch_distributed_train.sh [config=FILE] [num_gpus=N|auto] [further settings]: 01_train_distributed.py on this machine,
# with N processes (auto, the default: one for each GPU, or two on a CPU).
#
#     scripts/lens/launch_distributed_train.sh config=conf/gpt2_frozen.yaml num_gpus=8 name=first
set -euo pipefail
nproc=auto
settings=()
for arg in "$@"; do
    case "$arg" in
        config=*) settings+=("--config=${arg#*=}") ;;
        num_gpus=*) nproc=${arg#*=} ;;
        *) settings+=("$arg") ;;
    esac
done
if ! [[ "$nproc" =~ ^([1-9][0-9]*|auto)$ ]]; then
    echo "usage: $(basename "$0") [config=FILE] [num_gpus=N|auto] [further settings, such as name=first]" >&2
    exit 2
fi
exec "${PYTHON:-python}" "$(dirname "$0")/01_train_distributed.py" --nproc "$nproc" "${settings[@]}"
