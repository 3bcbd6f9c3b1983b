"""Weights from elsewhere in, trained models out."""
