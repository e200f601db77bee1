"""The name server: which broker serves which topic, and who is alive. Keeps nothing on disk but the KV store."""
