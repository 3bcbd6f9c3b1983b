"""Floor 4: recipes, stages, learners and the loop."""
