#!/bin/bash -l
# Made by `samestep submit`. The same script goes on with the run wherever it stopped.
#PBS -N sine-default-1
#PBS -l select=1:ncpus=8:ngpus=1:mpiprocs=1
#PBS -l place=scatter
#PBS -j oe
#PBS -o /home/me/runs/sine-default-1/job/
#PBS -r n

export SAMESTEP_BEGAN=$(date +%s)  # the time limit counts from here
exec >> /home/me/runs/sine-default-1/job/"$PBS_JOBID".out 2>&1
cd /home/me || exit 1
unset OMP_NUM_THREADS  # PBS sets it to the cores of all ranks of a node
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-8}"
python=/home/me/venv/bin/python
export SAMESTEP_TIME_LIMIT="$("$python" -P -m samestep.launching.schedulers.pbs_job begin /home/me/runs/sine-default-1/job/1_dump.sh 300)"
case "$(mpiexec --version 2>&1)" in
    *"Open MPI"*|*OpenRTE*) mpiexec=(mpiexec -n 1 --map-by ppr:1:node --bind-to none ${PATH+-x PATH} ${LD_LIBRARY_PATH+-x LD_LIBRARY_PATH} ${PYTHONPATH+-x PYTHONPATH} ${OMP_NUM_THREADS+-x OMP_NUM_THREADS} ${MASTER_ADDR+-x MASTER_ADDR} ${PBS_JOBID+-x PBS_JOBID} ${PBS_NODEFILE+-x PBS_NODEFILE} ${SAMESTEP_BEGAN+-x SAMESTEP_BEGAN} ${SAMESTEP_TIME_LIMIT+-x SAMESTEP_TIME_LIMIT} ${SAMESTEP_SECRET+-x SAMESTEP_SECRET}) ;;
    *) mpiexec=(mpiexec -n 1 -ppn 1) ;;
esac

"$python" -P -m samestep.launching.schedulers.pbs_job watch /home/me/runs/sine-default-1/job/1_dump.sh &
watch=$!
disown "$watch"  # or the shell would report that it was ended
asked=
trap 'asked=yes' TERM  # deleted, over its time limit, or PBS takes it back to the queue
"${mpiexec[@]}" --hostfile "$PBS_NODEFILE" "$python" -P -u -m samestep train sine.py 'prompt=Hello, world' name=sine-default-1 out=/home/me/runs until=dump
code=$?
kill "$watch" 2> /dev/null

# 75: stopped and saved, if the run says so: of a failed rank, 1 and 75 together are 75 too.
if [ "$code" = 75 ] && ! grep -qs '"status": "preempted"' /home/me/runs/sine-default-1/status.json; then code=1; fi
# Ranks that are stopped before training begins end with 0.
if [ "$code" = 0 ] && ! grep -qsE '"status": "(done|waiting)"' /home/me/runs/sine-default-1/status.json; then code=75; fi
# Not by a dependency: a job that stopped and went on under another number would not count as ended well.
if [ "$code" = 0 ]; then
    "$python" -P -m samestep.launching.schedulers.pbs_job next /home/me/runs/sine-default-1/job/2_train.sh ||
        echo "samestep: go on with the next stage," 'train: qsub /home/me/runs/sine-default-1/job/2_train.sh'
fi
echo "samestep: job $PBS_JOBID ended with exit code $code"
exit "$code"
