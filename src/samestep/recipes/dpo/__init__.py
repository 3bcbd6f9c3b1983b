"""Preference optimisation: protein inverse folding, and text."""
