"""What must hold in every run.

Each checker keeps a book of what clients saw and raises `Violation` when two entries cannot both be true.

    offset_identity  One place, one message
    resets           A reset that a leader has taken is told with the next pull, and until then nothing undoes it
    commits          What a group has committed travels with its queue
    single_leader    At every instant at most one broker takes what is sent to a logical queue
    order            Messages of one key are consumed in the order in which they were sent
    reports          What a name server believes of a broker's logical queues never becomes older, and in the end it
                     is whole
    ledger           Nothing acknowledged is missing, nothing unexpected is there, nothing is there more often than
                     it was sent
    progress         A committed offset never passes a message that nobody consumed; in the end every group has
                     consumed everything
    unit_isolation   Whoever belongs to a unit writes there and nowhere else, whatever is open; in the end all name
                     servers say the same
"""
