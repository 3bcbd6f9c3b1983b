#!/usr/bin/env bash
# submit_with_config.sh config=FILE [num_gpus_train=N] [num_gpus=M] [nodelist=NODES] [further settings]: a job of SLURM
# or PBS, or training at once on a machine without them.
#
#     ./scripts/submit_with_config.sh config=conf/gpt2_frozen.yaml num_gpus=2 num_gpus_train=8
#     ./scripts/submit_with_config.sh config=conf/gpt2_frozen.yaml num_gpus_train=8 --dry-run       # prints the jobs
#
# Training (with its warm start and its rewards) and evaluation run on N GPUs and what comes before (tokens, dump) on M,
# as jobs that follow each other; num_gpus_STAGE=K is for any one stage. The batch follows from the N GPUs that train.
# Without num_gpus the other stages take one GPU; without num_gpus_STAGE it is one job. Also nodes=, partition=,
# account=, qos=, constraint=, time=, mem=, resume_checkpoint=RUN, force_redump=true, and every option of
# `samestep submit --help` as --option VALUE. Everything else, such as layer_l=5, is a setting of the recipe.
set -euo pipefail
name=$(basename "$0")
options=() settings=()
has_config= train_gpus= has_eval=1
for arg in "$@"; do
    value=${arg#*=}
    key=${arg%%=*}
    case "$arg" in
        num_gpus_train=*) train_gpus=$value ;;
        num_gpus_eval=* | evaluation.rows=0) has_eval= ;;
    esac
    case "$arg" in
        config=*) has_config=1 options+=("--config=$value") ;;
        num_gpus=* | num_gpus_*=* | nodelist=* | nodes=* | partition=* | account=* | qos=* | constraint=* | time=* | mem=*)
            options+=("--${key//_/-}=$value") ;;
        resume_checkpoint=null | force_redump=false) ;;
        resume_checkpoint=*)
            if ! [ -f "$value/config.json" ]; then
                echo "$name: $arg names no run; give its folder, such as runs/first, to go on from its end" >&2
                exit 2
            fi
            run=$(cd "$value" && pwd)
            settings+=("name=$(basename "$run")" "out=$(dirname "$run")") ;;
        force_redump=true) settings+=(activation_dumper.source=null) ;; # the dump of no other run
        *) settings+=("$arg") ;;
    esac
done
if [ -z "$has_config" ]; then
    echo "usage: $name config=FILE [num_gpus_train=N] [num_gpus=M] [nodelist=NODES] [further settings]" >&2
    exit 2
fi
# Evaluation goes on in the job of training, so that it does not wait in the queue once more.
[ -n "$train_gpus" ] && [ -n "$has_eval" ] && options+=("--num-gpus-eval=$train_gpus")
echo "A run makes its dump once, and goes on with the same name=...; README.md says what else differs." >&2 # jobs are on stdout
exec "${PYTHON:-python}" -P -m samestep submit lens "${options[@]}" "${settings[@]+"${settings[@]}"}"
