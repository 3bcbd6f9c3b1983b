#!/usr/bin/env bash
# run_ddp_training.sh test|small|full [further flags]: train_ddp.py on 2, 4 or all GPUs, for 5, 20 or 100 epochs; full
# also saves checkpoints. NPROC=N takes N processes instead.
set -euo pipefail
case "${1:-}" in
    test) nproc=2 flags=(--epochs 5) ;;
    small) nproc=4 flags=(--epochs 20) ;;
    full) nproc=auto flags=(--epochs 100 --save_checkpoints) ;;
    *)
        echo "usage: $(basename "$0") test|small|full [further flags, such as --batch_size 8]" >&2
        exit 2
        ;;
esac
exec torchrun --nproc_per_node="${NPROC:-$nproc}" "$(dirname "$0")/../train_ddp.py" "${flags[@]}" "${@:2}"
