"""Every Slurm command of the product runs here: argv lists, time limits, typed errors."""
