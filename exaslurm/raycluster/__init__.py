"""Ray of a cell: how its nodes start it, and how the controller talks to it."""
