"""Floor 3: replicating or sharding a module over the ranks."""
