"""Package nameserver/cluster."""
