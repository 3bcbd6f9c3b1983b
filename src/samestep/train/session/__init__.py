"""One launch of a recipe: its run directory, its stages, its end."""
