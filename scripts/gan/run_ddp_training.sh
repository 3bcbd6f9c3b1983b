#!/usr/bin/env bash
# run_ddp_training.sh test|small|full [further flags]: train_ddp.py with this preset on 2, 4 or all devices.
set -euo pipefail
case "${1:-}" in
    test) nproc=2 ;;
    small) nproc=4 ;;
    full) nproc=auto ;;
    *)
        echo "usage: $(basename "$0") test|small|full [further flags, such as --model_name FOLDER --nproc N]" >&2
        exit 2
        ;;
esac
exec "${PYTHON:-python}" "$(dirname "$0")/train_ddp.py" --preset "$1" --nproc "$nproc" "${@:2}"
