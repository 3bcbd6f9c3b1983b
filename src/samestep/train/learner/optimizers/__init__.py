"""The optimizers of a learner: which there are, how parameters are grouped, and how their state is saved."""
