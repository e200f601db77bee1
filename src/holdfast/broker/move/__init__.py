"""Moving a logical queue to another broker without losing, repeating or reordering a message.

move_payload    What a logical queue takes along when it moves
move_source     Moving logical queues away from this broker
move_target     Becoming the leader of logical queues that another broker hands over
segment_expiry  Homes of logical queues whose records are all gone
"""
