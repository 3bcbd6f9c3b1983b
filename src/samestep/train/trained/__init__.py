"""A trained model, outside of training: load, generate, export."""
