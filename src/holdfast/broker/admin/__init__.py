"""Package broker/admin."""
