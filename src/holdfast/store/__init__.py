"""The log engine, on a disk that it is given.

base/          What the whole store stands on
queues/        Consume queues
log/           The commit log
keys/          The key index
recovery/      Opening a store folder
conversion/    Offline conversion between the two kinds of consume queue
housekeeping   The work that no send and no pull waits for, in bounded pieces
message_store  The one door of the log engine
"""
