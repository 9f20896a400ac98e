"""Checks of a login node: what a deployment needs, what is there, and what to do about it."""
