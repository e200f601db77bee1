"""Configuration: the KV store, and the settings of the name server.

kv_config      the KV store: small values by namespace and key, durable
kv_requests    request handlers of the KV store
settings       settings that can change at run time (318), and all settings as properties text (319)
"""
