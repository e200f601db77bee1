"""Package nameserver/config."""
