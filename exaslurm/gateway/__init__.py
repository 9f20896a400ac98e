"""The router as a process: it listens, makes itself known, follows its deployment, and ends."""
