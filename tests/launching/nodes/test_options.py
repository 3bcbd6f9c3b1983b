"""Which node opens the port, and when."""

import subprocess
import sys

CODE = """
import socket, sys
from samestep.launching.nodes.options import NodeOptions
socket.create_server = lambda *args, **options: "torch" in sys.modules
assert NodeOptions(2, 2, "127.0.0.1", 7).open_port()
"""


def test_the_port_opens_only_when_the_first_node_can_answer() -> None:
    """Importing torch may take a minute from a cold disk, and nodes that are connected would give up by then."""
    subprocess.run([sys.executable, "-c", CODE], check=True)
