"""Package cli/commands."""
