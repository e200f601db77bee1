"""Package client/produce."""
