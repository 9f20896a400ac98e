"""Engines: how one is started for a replica, guarded, and kept apart from its neighbours."""
