"""The learner and its parts."""
