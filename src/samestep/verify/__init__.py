"""`samestep verify`: the proof that a recipe is the same run at any world size and after a kill.

- `proof.py`: the checks of a proof, in their order; `runner.py` starts, kills and resumes the processes.
- `trace.py`: reads the evidence that ranks recorded, step by step.
- `compare.py`, `updates.py`: compare two runs to float tolerance; `bitwise.py` compares them bit for bit.
- `tolerance.py`, `rounding.py`: how much may differ, which is measured by a run that only rounds differently.
- `report.py`: turns comparisons into checks, and prints the table.
"""
