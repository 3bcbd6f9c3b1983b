"""Floor 6: one thin file per verb."""
