"""Floor 2: starting worker processes. Knows nothing of training."""
