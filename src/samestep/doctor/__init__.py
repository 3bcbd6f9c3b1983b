"""`samestep doctor`: is this machine, or this cluster, fit to train on?

- `check.py`: a check has a part that every rank measures, and a pure part that compares what all ranks measured.
- `checks/`: the checks, one file for each subject.
- `doctor.py`: the entry, and the list of checks for each `--test`; `runner.py` runs them, led by rank 0.
- `rendezvous.py`: ranks communicate through the rendezvous store alone, so that a check that hangs, or a network that
  does not work, can be reported. `time_limit.py` limits every wait, `clock.py` compares clocks.
- `findings.py`: the rows of the table; `report.py`, `plot.py` and `constants.py` print and save the result.
"""
