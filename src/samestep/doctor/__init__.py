"""`samestep doctor`: is this machine, or this cluster, fit to train on?

- `doctor.py`: the entry, and the list of checks for each `--test`.
- `check.py`: a check has a part that every rank measures, and a pure part that compares what all ranks measured. Rank 0
  leads from check to check.
- `checks/`: the checks, one file for each subject.
- `rendezvous.py`: ranks communicate through the rendezvous store alone, so that a check that hangs, or a network that
  does not work, can be reported. Every wait has a time limit. `clock.py` compares clocks.
- `findings.py`: the rows of the table; `report.py` prints and saves the result.
"""
