#!/usr/bin/env bash
# run_dpo_ddp_local.sh N|auto [further flags]: dpo_inv/run_dpo_ddp.py with N processes on this machine (auto: one for
# each GPU). MASTER_PORT=29501 takes another port than torchrun's own.
set -euo pipefail
if ! [[ "${1:-}" =~ ^([1-9][0-9]*|auto)$ ]]; then
    echo "usage: $(basename "$0") N|auto [further flags, such as --train_data pairs.json]" >&2
    exit 2
fi
exec torchrun --nproc_per_node="$1" ${MASTER_PORT:+"--master_port=$MASTER_PORT"} \
    "$(dirname "$0")/../dpo_inv/run_dpo_ddp.py" "${@:2}"
