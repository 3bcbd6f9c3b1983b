"""Floor 5: proof and diagnosis."""
