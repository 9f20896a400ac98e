"""The effects: a plan becomes jobs (or, on one machine, a process), and they end again."""
