#!/bin/bash -l
# Made by `samestep submit`. The same script goes on with the run wherever it stopped.
#PBS -N sine-default-1
#PBS -l select=1:ncpus=8:ngpus=1
#PBS -l place=scatter
#PBS -j oe
#PBS -o /home/me/runs/sine-default-1/job/pbs.log
#PBS -r n

export SAMESTEP_BEGAN=$(date +%s)  # max_time counts from here
exec >> /home/me/runs/sine-default-1/job/"$PBS_JOBID".out 2>&1
cd /home/me || exit 1
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

asked=
trap 'asked=yes' TERM  # it was deleted, or PBS takes it back to the queue
mpiexec -n 1 -ppn 1 --hostfile "$PBS_NODEFILE" /home/me/venv/bin/python -u -m samestep train sine.py 'prompt=Hello, world' name=sine-default-1 out=/home/me/runs until=dump
code=$?

# 75: stopped and saved. Ranks that are stopped before training begins end with 0.
if [ "$code" = 0 ] && ! grep -qsE '"status": "(done|waiting)"' /home/me/runs/sine-default-1/status.json; then code=75; fi
# Not by a dependency: a job that stopped and went on under another number would not count as ended well.
if [ "$code" = 0 ]; then
    if new=$(qsub -j oe -o /home/me/runs/sine-default-1/job/pbs.log /home/me/runs/sine-default-1/job/2_train.sh); then
        echo "samestep: job $new goes on with the next stage:" train
    else
        echo "samestep: go on with the next stage," train": qsub "/home/me/runs/sine-default-1/job/2_train.sh
    fi
fi
exit "$code"
