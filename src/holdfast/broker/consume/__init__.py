"""Package broker/consume."""
