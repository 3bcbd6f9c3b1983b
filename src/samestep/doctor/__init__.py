"""`samestep doctor`: is this machine, or this cluster, fit to train on?

An exam (`exam.py`) has a part that every rank measures and a part that compares what all ranks measured; the second is
a pure function of plain tables. `course.py` lists the exams and goes through them, rank 0 leading. Ranks talk through
the rendezvous store alone (`meeting.py`), so that an exam which hangs, or a network that does not carry, can be told.
"""
