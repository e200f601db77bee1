"""Package nameserver/push."""
