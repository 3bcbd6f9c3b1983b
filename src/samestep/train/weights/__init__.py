"""Where the weights of networks come from: runs, checkpoints, files, and the bases of adapters."""
