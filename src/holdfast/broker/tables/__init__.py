"""Package broker/tables."""
