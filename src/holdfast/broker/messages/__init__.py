"""Stored messages: writing records, finding them again, and unpacking batches.

An inner batch is a batch stored as one record. The broker unpacks it only for clients that cannot.

    writer         appends messages that the broker makes itself, or whose properties it must read
    send_gate      refuses every message while the broker can store none
    record_lookup  reads index entries and records, and turns a record into a new draft
    batch_cache    unpacks inner batches into single records, and caches the result
    inner_batches  decides which sends are stored as an inner batch, and refuses invalid ones
"""
