"""Checks of one host, run on it. Roots and readers are parameters, so that a recorded tree can be
examined as if it were the host."""
