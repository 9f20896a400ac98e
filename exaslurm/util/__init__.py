"""Small helpers that any room may use."""
