"""Placement: topology, pinning, fabric, sites, doctor."""
