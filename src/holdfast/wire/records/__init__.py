"""Stored records and batches, byte for byte.

properties   The properties of a message as one text
compression  Compressed bodies
message_id   The offset message id
record       One stored message, as the commit log and the body of a pull answer both have it
batch        Many messages in one body
inner_batch  A batch that stays one record
"""
