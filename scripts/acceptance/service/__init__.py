"""A service that keeps its promise while parts of it die, end, move and change."""
