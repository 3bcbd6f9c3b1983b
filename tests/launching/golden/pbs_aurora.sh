#!/bin/bash -l
# Made by `samestep submit`. The same script goes on with the run wherever it stopped.
#PBS -N sine-default-1
#PBS -A Deployment
#PBS -P climate
#PBS -q prod
#PBS -l select=2
#PBS -l place=scatter
#PBS -l walltime=02:00:00
#PBS -l filesystems=home:flare
#PBS -j oe
#PBS -o /home/me/runs/sine-default-1/job/
#PBS -r y

export SAMESTEP_BEGAN=$(date +%s)  # the time limit counts from here
exec >> /home/me/runs/sine-default-1/job/"$PBS_JOBID".out 2>&1
cd /home/me || exit 1
unset OMP_NUM_THREADS  # PBS sets it to the cores of all ranks of a node
module load frameworks
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
export ZE_FLAT_DEVICE_HIERARCHY=FLAT
python=/home/me/venv/bin/python
export SAMESTEP_TIME_LIMIT="$("$python" -P -m samestep.launching.schedulers.pbs_job begin /home/me/runs/sine-default-1/job/train.sh 300 7200)"
export MASTER_ADDR="${MASTER_ADDR:-$(head -n 1 "$PBS_NODEFILE")}"
case "$(mpiexec --version 2>&1)" in
    *"Open MPI"*|*OpenRTE*) echo 'samestep: --cpu-bind is for the mpiexec of PALS, and this one is Open MPI; leave it out'; exit 2 ;;
    *) mpiexec=(mpiexec -n 24 -ppn 12 --cpu-bind list:1-8:9-16) ;;
esac

"$python" -P -m samestep.launching.schedulers.pbs_job watch /home/me/runs/sine-default-1/job/train.sh &
watch=$!
disown "$watch"  # or the shell would report that it was ended
asked=
trap 'asked=yes' TERM  # deleted, over its time limit, or PBS takes it back to the queue
"${mpiexec[@]}" --hostfile "$PBS_NODEFILE" "$python" -P -u -m samestep train sine.py 'prompt=Hello, world' name=sine-default-1 out=/home/me/runs
code=$?
kill "$watch" 2> /dev/null

# 75: stopped and saved, if the run says so: of a failed rank, 1 and 75 together are 75 too.
if [ "$code" = 75 ] && ! grep -qs '"status": "preempted"' /home/me/runs/sine-default-1/status.json; then code=1; fi
# Ranks that are stopped before training begins end with 0.
if [ "$code" = 0 ] && ! grep -qsE '"status": "(done)"' /home/me/runs/sine-default-1/status.json; then code=75; fi
if [ "$code" = 75 ] || [ -n "$asked" ]; then
    "$python" -P -m samestep.launching.schedulers.pbs_job ended /home/me/runs/sine-default-1/job/train.sh 100 "$code" "$asked" ||
        echo "samestep: not submitted again; go on with:" 'qsub /home/me/runs/sine-default-1/job/train.sh'
fi
echo "samestep: job $PBS_JOBID ended with exit code $code"
exit "$code"
