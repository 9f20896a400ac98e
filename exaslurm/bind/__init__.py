"""Plan and facts to binding. Pure, and the same with and without Ray."""
