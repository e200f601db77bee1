"""Package broker/flow."""
