"""What the user wants: the cluster spec."""
