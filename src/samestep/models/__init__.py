"""Floor 3: networks."""
