"""What happens after a step, every so often."""
