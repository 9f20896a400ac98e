"""The cell's controller: who is there, what runs where, what is ready, who must know."""
