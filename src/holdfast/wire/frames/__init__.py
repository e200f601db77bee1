"""Package wire/frames."""
