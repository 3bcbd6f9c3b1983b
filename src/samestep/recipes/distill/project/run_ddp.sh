#!/usr/bin/env bash
# run_ddp.sh N True|False [further flags]: train_ddp.py with N processes on this machine (auto: one per GPU), with a
# projection to the teacher's size (True) or without (False).
set -euo pipefail
if ! [[ "${1:-}" =~ ^([1-9][0-9]*|auto)$ && "${2:-}" =~ ^([Tt]rue|[Ff]alse)$ ]]; then
    echo "usage: $(basename "$0") N|auto True|False [further flags, such as --batch_size 32]" >&2
    exit 2
fi
exec torchrun --nproc_per_node="$1" "$(dirname "$0")/train_ddp.py" --use_projection="$2" "${@:3}"
