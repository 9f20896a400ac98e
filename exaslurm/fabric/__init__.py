"""Networks between nodes: counters of their ports, measurements between two nodes."""
