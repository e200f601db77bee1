"""Package pipeline/convert."""
