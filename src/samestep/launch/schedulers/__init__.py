"""Jobs of SLURM and PBS, for `samestep submit`.

- job.py: what a job asks for (`Job`), what the cluster is like (`Site`), and the nodes and GPUs that follow from both
- script.py: what the batch scripts of all schedulers share
- slurm.py, pbs.py: the batch script of each scheduler, and the commands to submit, watch and cancel a job
- pbs_job.py: what the script of a PBS job calls inside the job: its time limit, submitting again, recording it
- submit.py: writes the scripts into the run directory, submits them and records the jobs there
"""
