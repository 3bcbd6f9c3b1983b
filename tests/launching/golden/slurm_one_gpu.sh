#!/bin/bash
# Made by `samestep submit`. The same script goes on with the run wherever it stopped.
#SBATCH --job-name=sine-default-1
#SBATCH --chdir=/home/me
#SBATCH --output=/home/me/runs/sine-default-1/job/%j.out
#SBATCH --open-mode=append
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --signal=USR1@60
#SBATCH --requeue

export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
python=/home/me/venv/bin/python

# The ranks get these signals too: they save and end, and this script goes on after them.
trap : TERM USR1
srun --kill-on-bad-exit=1 --cpu-bind=none "$python" -P -u -m samestep train sine.py 'prompt=Hello, world' name=sine-default-1 out=/home/me/runs
code=$?

# 75: stopped and saved, if the run says so: of a failed rank, 1 and 75 together are 75 too.
if [ "$code" = 75 ] && ! grep -qs '"status": "preempted"' /home/me/runs/sine-default-1/status.json; then code=1; fi
# Ranks that are stopped before training begins end with 0.
if [ "$code" = 0 ] && ! grep -qsE '"status": "(done)"' /home/me/runs/sine-default-1/status.json; then code=75; fi
# It queues again, unless it was cancelled, or that does not help.
if [ "$code" = 75 ]; then
    "$python" -P -m samestep.launching.schedulers.slurm_requeue /home/me/runs/sine-default-1/job/train.sh 100 60 ||
        echo "samestep: unless squeue --job $SLURM_JOB_ID shows the job, go on with:" 'sbatch /home/me/runs/sine-default-1/job/train.sh'
fi
exit "$code"
