"""Runs the command in a folder of its own, as the tests of the command line do."""

from cli.conftest import shell

__all__ = ["shell"]
