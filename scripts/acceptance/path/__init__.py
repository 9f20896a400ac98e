"""From a spec to an answered chat request, on a real Slurm."""
