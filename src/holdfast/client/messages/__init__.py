"""Package client/messages."""
