"""Stored messages: how a record is written, found again, and opened if it is a batch.

writer         Appends messages that the broker itself makes or has to look into
record_lookup  Records and index entries that were looked up, and what becomes of them
batch_cache    Batches that this broker opened for somebody who cannot
inner_batches  Batches that stay one record
"""
