"""The checks of `samestep doctor`, one file for each subject."""
