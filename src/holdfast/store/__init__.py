"""The log engine: a commit log with consume queues and a key index, on a `Disk` that its caller passes in.

Words: the log holds *records*. A record may be *staged* (in memory), *written* (in a log file) or
*confirmed* (indexed, readable by consumers). An *entry* is one element of a consume queue. A *position* is a byte
address in the log, an *offset* counts the messages of a queue. *Hot* bytes are in memory; *cold* bytes may not be.

    base/           Disk interface, options and files that all other parts use
    queues/         Consume queues: by message and by record
    log/            The commit log
    keys/           The key index
    recovery/       Opening a store folder, crash recovery and replica logs
    conversion/     Offline conversion between the two kinds of consume queue
    message_store   `MessageStore`, the API of the log engine
    housekeeping    Background work in bounded pieces: checkpoints, retention, verification, key indexing
"""
