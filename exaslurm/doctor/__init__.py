"""Checks of a login node and, through Slurm, of nodes: what is there, what to do about it."""
