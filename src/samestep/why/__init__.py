"""`samestep why`: what happened to a run, and which command to type next. Nothing here imports torch.

- `collect.py` reads the files that a run left, and `scheduler.py` asks SLURM and the kernel.
- `records.py` defines the evidence, which is all that a verdict may depend on, and the diagnosis.
- `causes.py` finds the failure that came first, and `diagnose.py` comes to a verdict and to the commands to type next:
  pure functions of the evidence.
- `report.py` writes the text or JSON that is printed.
"""
