"""What `samestep doctor` looks at, one file a subject."""
