"""Clients as people have them, to be run by a Python that has their packages.

Argument: JSON of {"base_url", "key_file", "chat", "embed"}: the address with /v1, a file with the
key, the names of two models. Each prints a JSON list of [what, whether it is so, what was found].
"""
