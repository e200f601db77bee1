"""Package client/cluster."""
