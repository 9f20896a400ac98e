"""What is near what inside a node: read from any source, merged, measured and drawn."""
