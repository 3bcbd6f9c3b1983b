#!/usr/bin/env bash
# submit_with_config.sh config=FILE num_gpus_train=N [num_gpus=M] [nodelist=NODES] [further settings]: `samestep submit lens`.
#
#     scripts/lens/submit_with_config.sh config=conf/gpt2_frozen.yaml num_gpus_train=8 num_gpus=2 nodelist=node1
#
# Training (with its warm start and its rewards) and evaluation run on N GPUs and what comes before (tokens, dump) on M,
# as jobs that follow each other; num_gpus_STAGE=K is for any one stage. The batch follows from the N GPUs that train.
# Without num_gpus the other stages take one GPU; without num_gpus_STAGE it is one job. Also nodes=, partition=,
# account=, qos=, constraint=, time=, mem=, and every option of `samestep submit --help` as --option VALUE; --dry-run
# prints the jobs. Everything else, such as layer_l=5, is a setting of the recipe.
set -euo pipefail
options=() settings=()
has_config= train_gpus= has_eval=1
for arg in "$@"; do
    name=${arg%%=*}
    case "$arg" in
        num_gpus_train=*) train_gpus=${arg#*=} ;;
        num_gpus_eval=* | evaluation.rows=0) has_eval= ;;
    esac
    case "$arg" in
        config=*) has_config=1 options+=("--config=${arg#*=}") ;;
        num_gpus=* | num_gpus_*=* | nodelist=* | nodes=* | partition=* | account=* | qos=* | constraint=* | time=* | mem=*)
            options+=("--${name//_/-}=${arg#*=}") ;;
        *) settings+=("$arg") ;;
    esac
done
if [ -z "$has_config" ]; then
    echo "usage: $(basename "$0") config=FILE [num_gpus_train=N] [num_gpus=M] [nodelist=NODES] [further settings]" >&2
    exit 2
fi
# Evaluation goes on in the job of training, so that it does not wait in the queue once more.
[ -n "$train_gpus" ] && [ -n "$has_eval" ] && options+=("--num-gpus-eval=$train_gpus")
exec "${PYTHON:-python}" -P -m samestep submit lens "${options[@]}" "${settings[@]}"
