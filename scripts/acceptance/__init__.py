"""Acceptance lines: each is a module `line_NN` of a set, with TITLE and `run(line)`."""
