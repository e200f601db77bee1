"""Package broker/failover."""
