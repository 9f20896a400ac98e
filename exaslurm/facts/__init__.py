"""What a node is, as seen from inside the job step. Roots of /sys and /proc are parameters."""
