"""Package broker/mapping."""
