"""Package pipeline/audit."""
