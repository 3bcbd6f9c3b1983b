#!/usr/bin/env bash
# launch_distributed_train.sh [--config-path=FOLDER --config-name=NAME] [--num-gpus=N|auto] [further settings]:
# 01_train_distributed.py on this machine, with N processes (auto, the default: one for each GPU, or two on a CPU).
#
#     ./scripts/launch_distributed_train.sh --config-path=../conf --config-name=gpt2_frozen --num-gpus=8
#     ./scripts/launch_distributed_train.sh config=conf/gpt2_frozen.yaml num_gpus=8 name=first
set -euo pipefail
nproc=auto
settings=()
while [ $# -gt 0 ]; do
    case "$1" in
        --num-gpus | --num_gpus) nproc=${2:-} && shift ;;
        --num-gpus=* | --num_gpus=* | num_gpus=*) nproc=${1#*=} ;;
        config=*) settings+=("--config=${1#*=}") ;;
        *) settings+=("$1") ;;
    esac
    [ $# -gt 0 ] && shift
done
if ! [[ "$nproc" =~ ^([1-9][0-9]*|auto)$ ]]; then
    echo "usage: $(basename "$0") [--config-path=FOLDER --config-name=NAME] [--num-gpus=N|auto] [further settings]" >&2
    exit 2
fi
exec "${PYTHON:-python}" "$(dirname "$0")/01_train_distributed.py" --nproc "$nproc" "${settings[@]+"${settings[@]}"}"
