#!/bin/bash -l
# Made by `samestep submit`. The same script goes on with the run wherever it stopped.
#SBATCH --job-name=sine-default-1
#SBATCH --chdir=/home/me
#SBATCH --output=/home/me/runs/sine-default-1/job/%j.out
#SBATCH --open-mode=append
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=16
#SBATCH --mem=0
#SBATCH --account=physics
#SBATCH --partition=gpu
#SBATCH --qos=long
#SBATCH --constraint='a100|h100'
#SBATCH --nodelist='gpu[3-4]'
#SBATCH --time=36:00:00
#SBATCH --signal=USR1@120
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --mail-type=END

module load cuda/12.8
python_before="$(command -v python)"
source /etc/profile.d/proxy.sh
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-16}"
export NCCL_DEBUG=WARN
export GREETING='it'"'"'s me'
python=/home/me/venv/bin/python
python_now="$(command -v python)"  # --setup may have activated another environment
if [ -n "$python_now" ] && [ "$python_now" != "$python_before" ]; then
    python="$python_now"; echo "samestep: the interpreter of this job is $python, as --setup says"
fi
if ! "$python" -P -c 'import importlib.util as found, sys; sys.exit(not all(map(found.find_spec, ("samestep", "torch"))))'; then
    echo "samestep: the interpreter of this job, $python, has no samestep or no torch: install them there, or name another one with --python"; exit 2
fi

# The ranks get these signals too: they save and end, and this script goes on after them.
trap : TERM USR1
srun --kill-on-bad-exit=1 --cpus-per-task=16 --cpu-bind=cores "$python" -P -u -m samestep train sine.py 'prompt=Hello, world' name=sine-default-1 out=/home/me/runs
code=$?

# 75: stopped and saved, if the run says so: of a failed rank, 1 and 75 together are 75 too.
if [ "$code" = 75 ] && ! grep -qs '"status": "preempted"' /home/me/runs/sine-default-1/status.json; then code=1; fi
# Ranks that are stopped before training begins end with 0.
if [ "$code" = 0 ] && ! grep -qsE '"status": "(done)"' /home/me/runs/sine-default-1/status.json; then code=75; fi
# It queues again, unless it was cancelled, or that does not help.
if [ "$code" = 75 ]; then
    "$python" -P -m samestep.launching.schedulers.slurm_requeue /home/me/runs/sine-default-1/job/train.sh 100 120 ||
        echo "samestep: unless squeue --job $SLURM_JOB_ID shows the job, go on with:" 'sbatch /home/me/runs/sine-default-1/job/train.sh'
fi
exit "$code"
