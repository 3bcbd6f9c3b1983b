"""Launching on several nodes: one launcher a node, the first of them leads."""
