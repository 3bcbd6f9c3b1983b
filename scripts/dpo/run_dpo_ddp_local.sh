#!/usr/bin/env bash
# run_dpo_ddp_local.sh N [further flags]: run_dpo_ddp.py with N processes on this machine (auto: one per GPU).
set -euo pipefail
if ! [[ "${1:-}" =~ ^([1-9][0-9]*|auto)$ ]]; then
    echo "usage: $(basename "$0") N|auto [further flags, such as --train_data pairs.json]" >&2
    exit 2
fi
exec "${PYTHON:-python}" "$(dirname "$0")/run_dpo_ddp.py" --nproc "$1" "${@:2}"
