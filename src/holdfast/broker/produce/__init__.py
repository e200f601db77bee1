"""Package broker/produce."""
