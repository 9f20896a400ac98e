"""Another version of a deployment, brought up beside the old one and given its load by steps."""
