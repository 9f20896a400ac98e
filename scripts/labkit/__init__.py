"""The lab: a real Slurm cluster of namespaces on one Linux machine (see docs/lab.md)."""
