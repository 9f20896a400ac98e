"""The node agent: runs on every node of a cell, starts and watches what its controller asks for."""
