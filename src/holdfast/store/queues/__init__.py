"""Package store/queues."""
