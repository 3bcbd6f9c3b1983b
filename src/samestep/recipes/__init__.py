"""Floor 5: one folder per recipe, found by its name; adding one edits no other file."""
