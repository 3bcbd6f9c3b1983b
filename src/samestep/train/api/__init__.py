"""What a recipe is written with."""
