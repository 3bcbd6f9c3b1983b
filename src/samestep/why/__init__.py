"""What became of a run: `gather` reads what was left of it, `judge` comes to a verdict, `show` says it.

`evidence` is all that a verdict may rest on, so that judging is a pure function.
"""
