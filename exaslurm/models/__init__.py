"""From where a model's weights are to a directory that an engine can load."""
