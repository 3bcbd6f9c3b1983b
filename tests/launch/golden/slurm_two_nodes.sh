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
source /etc/profile.d/proxy.sh
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-16}"
export NCCL_DEBUG=WARN
export GREETING='it'"'"'s me'

# The ranks get these signals too: they save and end, and this script goes on after them.
trap : TERM USR1
srun --kill-on-bad-exit=1 --cpus-per-task 16 --cpu-bind=cores /home/me/venv/bin/python -P -u -m samestep train sine.py 'prompt=Hello, world' name=sine-default-1 out=/home/me/runs
code=$?

# 75: stopped and saved, if the run says so: of a failed rank, 1 and 75 together are 75 too.
if [ "$code" = 75 ] && ! grep -qs '"status": "preempted"' /home/me/runs/sine-default-1/status.json; then code=1; fi
# Ranks that are stopped before training begins end with 0.
if [ "$code" = 0 ] && ! grep -qsE '"status": "(done)"' /home/me/runs/sine-default-1/status.json; then code=75; fi
# A job that still counts as running was not cancelled: its time is up, or it makes way for another.
state=$(scontrol show job --oneliner "$SLURM_JOB_ID" | grep -o 'JobState=[A-Z_]*')
if [ "$code" = 75 ] && [ "$state" = JobState=RUNNING ]; then
    if [ "${SLURM_RESTART_COUNT:-0}" -lt 100 ] && scontrol requeue "$SLURM_JOB_ID"; then
        echo "samestep: stopped and saved; the job queues again and goes on from there"
    else
        echo "samestep: stopped and saved, but not queued again; go on with:" 'samestep train --resume /home/me/runs/sine-default-1'
    fi
fi
exit "$code"
