"""Metrics, where they are written, and what rank 0 prints."""
