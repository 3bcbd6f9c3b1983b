"""Floor 3: which samples a step takes, in what order, with which noise."""
