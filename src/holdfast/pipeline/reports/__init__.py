"""Package pipeline/reports."""
