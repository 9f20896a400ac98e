"""Spec and site to plan. Pure: no clock, environment, files or processes."""
