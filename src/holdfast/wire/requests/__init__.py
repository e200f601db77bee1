"""Package wire/requests."""
