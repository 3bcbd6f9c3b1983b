#!/bin/bash -l
# Made by `samestep submit`. The same script goes on with the run wherever it stopped.
#PBS -N sine-default-1
#PBS -A Deployment
#PBS -q prod
#PBS -l select=2
#PBS -l place=scatter
#PBS -l walltime=02:00:00
#PBS -l filesystems=home:flare
#PBS -j oe
#PBS -o /home/me/runs/sine-default-1/job/pbs.log
#PBS -r y

export SAMESTEP_BEGAN=$(date +%s)  # max_time counts from here
exec >> /home/me/runs/sine-default-1/job/"$PBS_JOBID".out 2>&1
cd /home/me || exit 1
module load frameworks
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
export ZE_FLAT_DEVICE_HIERARCHY=FLAT

asked=
trap 'asked=yes' TERM  # it was deleted, or PBS takes it back to the queue
mpiexec -n 24 -ppn 12 --cpu-bind list:1-8:9-16 --hostfile "$PBS_NODEFILE" /home/me/venv/bin/python -u -m samestep train sine.py 'prompt=Hello, world' name=sine-default-1 out=/home/me/runs
code=$?

# 75: stopped and saved. Ranks that are stopped before training begins end with 0.
if [ "$code" = 0 ] && ! grep -qsE '"status": "(done)"' /home/me/runs/sine-default-1/status.json; then code=75; fi
if [ "$code" = 75 ] && [ -z "$asked" ]; then
    if [ "${SAMESTEP_TURN:-0}" -lt 100 ] && new=$(qsub -v SAMESTEP_TURN=$(( ${SAMESTEP_TURN:-0} + 1 )) -j oe -o /home/me/runs/sine-default-1/job/pbs.log /home/me/runs/sine-default-1/job/train.sh); then
        echo "samestep: stopped and saved; job $new goes on from there"
    else
        echo "samestep: stopped and saved, but not submitted again; go on with: qsub "/home/me/runs/sine-default-1/job/train.sh
    fi
fi
exit "$code"
