"""Keeping a deployment alive: its cells are replaced when their jobs end, and before."""
