"""When a command line asks for help, anywhere in it: no option takes `--help` as its value, unless with `=`."""

from collections.abc import Sequence

HELP_FLAGS = ("-h", "--help")


def asks_for_help(args: Sequence[str]) -> bool:
    """Whether the args of a verb ask how it is used."""
    return any(arg in HELP_FLAGS for arg in args)
