"""Jobs of SLURM and PBS, for `samestep submit`.

- job.py: what a job asks for (`Job`), what the cluster is like (`Site`), and the nodes and GPUs that follow from both
- script.py: what the batch scripts of all schedulers share
- slurm.py, pbs.py: the batch script of each scheduler, and the commands to submit, watch and cancel a job
- slurm_requeue.py, pbs_job.py: what the script of a job calls inside it: queueing again; for PBS also its time limit
- requeue.py: whether queueing again helps, by what launches have saved, and how often it may
- submit.py: writes the scripts into the run directory, submits them and records the jobs there
"""
