"""Floor 5: `samestep verify`, the proof that a recipe is the same run at any world size and after a kill."""
