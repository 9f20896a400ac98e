"""Secrets of a deployment, and the keys of its clients."""
