"""Stored records and message batches, byte for byte.

An *item* is one message inside a batch. An *inner batch* is a batch that brokers store and serve as a single record.

    properties     a message's properties as one text
    compression    compressed bodies
    message_id     the offset message id
    record         one stored message, as in the commit log and in the body of a pull answer
    batch          many messages in one body
    inner_batch    a batch that stays one record
"""
