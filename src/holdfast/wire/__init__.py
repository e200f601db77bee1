"""Bytes to values and back: RocketMQ's remoting protocol and record format. No I/O.

frames/    Frames and commands of RocketMQ's remoting protocol, and the encodings they are made of
records/   Stored records and batches, byte for byte
cluster/   What brokers and name servers tell each other
requests/  Headers and bodies of requests, by subject
"""
