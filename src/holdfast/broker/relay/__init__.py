"""Package broker/relay."""
