"""Package pipeline/scan."""
