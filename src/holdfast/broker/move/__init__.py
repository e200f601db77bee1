"""Package broker/move."""
