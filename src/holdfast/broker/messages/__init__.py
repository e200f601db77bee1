"""Package broker/messages."""
