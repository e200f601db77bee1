"""Package broker/deferred."""
