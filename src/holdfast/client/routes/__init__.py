"""Package client/routes."""
