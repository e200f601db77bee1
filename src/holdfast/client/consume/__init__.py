"""Package client/consume."""
