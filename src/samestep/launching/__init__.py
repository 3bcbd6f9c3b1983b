"""Floor 2: starting worker processes. Knows nothing of training.

launcher.py starts the ranks of a run, attempt by attempt; node_runner.py and attempt.py do that on one node, nodes/ on
several, and restart_policy.py decides about restarts. schedulers/ submits jobs. local.py starts workers without
restarts, for `samestep verify` and tests. call.py is `samestep.launch(...)`.
"""
