"""Frozen types that cross rooms. Nothing here reads a clock, a file or the environment."""
