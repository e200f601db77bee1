"""Package store/recovery."""
