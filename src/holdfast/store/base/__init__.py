"""Package store/base."""
