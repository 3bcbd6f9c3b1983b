"""Floor 1: configuration, run directory, records and errors. Knows nothing of torch or training."""
