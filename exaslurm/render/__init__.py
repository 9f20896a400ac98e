"""From the plan to text: batch scripts that a human can read and ``sbatch`` can run."""
