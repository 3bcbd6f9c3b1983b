#!/bin/bash -l
#PBS -N dpo_ddp
#PBS -A MY_PROJECT
#PBS -q debug
#PBS -l select=2:system=aurora
#PBS -l place=scatter
#PBS -l walltime=01:00:00
#PBS -l filesystems=home:flare
#PBS -j oe
#PBS -k doe
# Train on preference pairs on Aurora, 12 ranks a node, one for each tile, or 6, one for each whole GPU. Write your
# project after -A, or give it:
#
#     qsub scripts/run_dpo_ddp_aurora.sh
#     qsub -A physics -l select=4:system=aurora -v FLAGS="--train_data pairs.json name=first" scripts/run_dpo_ddp_aurora.sh
#     tail -f logs/dpo_ddp_*.out
#     scripts/run_dpo_ddp_aurora.sh --train_data pairs.json     # in an interactive job, or with mpiexec alone
#     DRY_RUN=1 scripts/run_dpo_ddp_aurora.sh                   # print the command
#
# Variables: FLAGS (as those of dpo_inv.run_dpo_ddp, separated by spaces), VENV (an environment to activate), PYTHON,
# MPIEXEC, MASTER_PORT, RANKS_PER_NODE (12 or 6), MAX_TIME (when to save and stop; 55m in a job, to be before walltime).
# The same command with the same name=... goes on where a run stopped. `samestep submit dpo --site aurora` also queues
# again by itself. Submit or call it in the project's folder.
set -e
cd "${PBS_O_WORKDIR:-$PWD}"
if ! [ -f dpo_inv/run_dpo_ddp.py ]; then
    echo "$0: there is no dpo_inv/run_dpo_ddp.py in $PWD; submit or call it in the project's folder" >&2
    exit 2
fi
if [ "${PBS_ENVIRONMENT:-}" = PBS_BATCH ] && [ -z "${DRY_RUN:-}" ]; then
    mkdir -p logs
    exec >> "logs/dpo_ddp_${PBS_JOBID%%.*}.out" 2>&1
fi
read -ra flags <<< "${FLAGS:-}"
per_node=${RANKS_PER_NODE:-12}
nodes=1
launcher=()
if [ -n "${PBS_NODEFILE:-}" ]; then
    if command -v module > /dev/null; then module load frameworks; fi
    nodes=$(sort -u "$PBS_NODEFILE" | wc -l)
    # The cores of a rank are on the socket of its device; core 0 of each socket is the system's.
    case "$per_node" in
        12) devices=FLAT threads=8 # a tile each
            cores=1-8:9-16:17-24:25-32:33-40:41-48:53-60:61-68:69-76:77-84:85-92:93-100 ;;
        6) devices=COMPOSITE threads=16 # a whole GPU each
            cores=1-16:17-32:33-48:53-68:69-84:85-100 ;;
        *) echo "RANKS_PER_NODE must be 12 (a tile each) or 6 (a whole GPU each), not $per_node" >&2 && exit 2 ;;
    esac
    launcher=(--hostfile "$PBS_NODEFILE" --cpu-bind "list:$cores")
    export SAMESTEP_BEGAN=$(date +%s)  # max_time counts from here
    flags=(--max_time "${MAX_TIME:-55m}" "${flags[@]}")
    export MASTER_ADDR="${MASTER_ADDR:-$(hostname -s).hsn.cm.aurora.alcf.anl.gov}"
    # What a device is: a tile or a GPU. oneCCL starts through the PMIx of PALS and talks over MPI.
    export ZE_FLAT_DEVICE_HIERARCHY=$devices CCL_PROCESS_LAUNCHER=pmix CCL_ATL_TRANSPORT=mpi CCL_KVS_MODE=mpi
    export CCL_KVS_USE_MPI_RANKS=1 CCL_KVS_CONNECTION_TIMEOUT=600 CCL_ZE_CACHE_OPEN_IPC_HANDLES_THRESHOLD=1024
    export FI_MR_CACHE_MONITOR=disabled FI_CXI_DEFAULT_CQ_SIZE=1048576
fi
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-${threads:-8}}"
if [ -n "${VENV:-}" ]; then source "$VENV/bin/activate"; fi
command=("${MPIEXEC:-mpiexec}" -n $((nodes * per_node)) --ppn "$per_node" "${launcher[@]}")
command+=("${PYTHON:-python}" -u -m dpo_inv.run_dpo_ddp "${flags[@]}" "$@")
if [ -n "${DRY_RUN:-}" ]; then
    printf "%q " "${command[@]}" && echo
else
    exec "${command[@]}"
fi
