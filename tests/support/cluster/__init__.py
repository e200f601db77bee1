"""Clusters for tests: as real processes, as state machines in this process, and as an admin access with a script."""
