"""Package store/keys."""
