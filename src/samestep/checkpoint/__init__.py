"""Floor 3: storing state so that no kill can lose it."""
