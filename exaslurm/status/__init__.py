"""How a deployment is doing: one snapshot from Slurm, controllers, registry and run directory."""
