"""What ``srun`` starts: the batch host's launcher, each node's init, and pinned exec."""
