"""Floor 2: who this process is among its peers, on which device, and how they agree."""
