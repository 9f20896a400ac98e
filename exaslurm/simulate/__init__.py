"""A cluster that is made up, under the real control plane: what fails, and what comes of it.

Slurm, nodes and engines are simulated; controllers, supervisor and router are the real processes,
with real requests through them. Time runs faster by one factor for all control loops
(``util.clock``).
"""
