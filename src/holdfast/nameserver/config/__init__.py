"""Configuration that tools store at a name server, and its settings.

kv_config    The KV store
kv_requests  Requests about the KV store
settings     What can be changed while the name server runs (318), and how all settings read as properties text
(319)
"""
