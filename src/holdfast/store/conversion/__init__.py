"""Package store/conversion."""
