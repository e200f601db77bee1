"""Package pipeline/archive."""
