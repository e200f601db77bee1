"""Package broker/replication."""
