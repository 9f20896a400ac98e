"""Who serves what: one record a cell, and the live state of each cell."""
