"""Jobs of SLURM and PBS: what they ask for, their scripts, and how they are submitted."""
