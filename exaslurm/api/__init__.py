"""The Python interface: one class, synchronous, usable from a notebook."""
