"""Runs, for people to look at: a list of them, a page, a live view in the terminal, a table in a notebook.

Only files of run directories are read; nothing is locked or written there, so a live run is not disturbed.
"""
