"""Package wire/records."""
