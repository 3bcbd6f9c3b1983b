"""The learner, and what it is made of."""
