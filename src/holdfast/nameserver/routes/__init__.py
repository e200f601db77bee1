"""Package nameserver/routes."""
