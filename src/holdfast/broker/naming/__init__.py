"""Package broker/naming."""
