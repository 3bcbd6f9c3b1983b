#!/bin/bash
# Made by `samestep submit`. The same script goes on with the run wherever it stopped.
#SBATCH --job-name=50%
#SBATCH --chdir='/a b'
#SBATCH --output='/a b/50%%/job/%j.out'
#SBATCH --open-mode=append
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --time=00:30:00
#SBATCH --signal=USR1@60
#SBATCH --no-requeue

export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
python=python

# The ranks get these signals too: they save and end, and this script goes on after them.
trap : TERM USR1
srun --kill-on-bad-exit=1 --cpu-bind=none "$python" -P -u -m samestep train sine.py 'prompt=Hello, world' name=sine-default-1 out=/home/me/runs
code=$?

# 75: stopped and saved, if the run says so: of a failed rank, 1 and 75 together are 75 too.
if [ "$code" = 75 ] && ! grep -qs '"status": "preempted"' '/a b/50%/status.json'; then code=1; fi
# Ranks that are stopped before training begins end with 0.
if [ "$code" = 0 ] && ! grep -qsE '"status": "(done)"' '/a b/50%/status.json'; then code=75; fi
exit "$code"
