"""One module per verb, or per small group of verbs."""
