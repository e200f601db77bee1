"""Package pipeline/stats."""
