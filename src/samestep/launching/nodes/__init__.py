"""Launching on several nodes: every node runs the same command, and the launcher of the first node leads.

- options.py: how many nodes, where they meet (`--rdzv`, `--hosts`), and which node opens that port
- leader.py: the first node's launcher knows which nodes are there, assigns the ranks and decides how to go on
- member.py: the launcher of every node, also of the first, runs its ranks as the leader says
- link.py, messages.py: the connection between them, authenticated lines of JSON with heartbeats
- ssh.py, remote.py: `--hosts`, where the first node starts the other launchers by ssh

So a node that is gone or out of reach is noticed within seconds, and no call waits longer than that.
"""
