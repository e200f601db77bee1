"""Package wire/cluster."""
