"""Package store/log."""
