"""Encode and decode RocketMQ's remoting protocol and record format. Contains no I/O.

Every format that leaves the process has its codec here: the layout of headers, bodies and stored records.

    frames/      frames, commands, and the encodings of their headers and bodies
    records/     stored records and message batches, byte for byte
    cluster/     what brokers and name servers exchange: registrations, routes, mappings, leases, replication
    access/      signatures, logins, and requests that manage users and rules
    requests/    headers and bodies of the remaining requests, by subject
"""
