"""Faults on purpose, under load, with figures of what clients notice."""
