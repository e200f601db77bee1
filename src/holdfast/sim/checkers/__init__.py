"""The promises that must hold in every run.

Each checker records what clients and brokers saw, and raises `Violation` when two observations cannot both be true. A
*queue offset* identifies a message by queue and offset, a *log position* by its byte position in a broker's log. To
*allow a loss* is to exclude from the checks the records that a permitted loss may have taken.

    offset_identity  every offset of a queue always holds the same message
    resets           the next pull reports a reset that a leader accepted, and nothing undoes it before
    commits          the committed offsets of a group move along with its queue
    single_leader    at every instant at most one broker accepts sends to a logical queue
    order            messages of one key are consumed in the order in which they were sent
    reports          a name server's record of a broker's logical queues never becomes older, and is complete at the end
    ledger           no acknowledged message is missing, none is unexpected, none is stored more often than it was sent
    progress         a committed offset never passes an unconsumed message, and each group consumes everything at last
    unit_isolation   a producer writes only to its own unit, and name servers agree on the openings at the end
"""
