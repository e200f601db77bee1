"""Operations that combine those of several nouns, for the command line and the console alike.

broker_list    every broker with its status, and those that are down and still have segments
topic_view     one topic: its description and mapping, problems in words, and the live map with consumer positions
route_view     the route of a topic, as clients of each kind read it
message_view   messages as values for people and programs: facts, body as text, JSON or hex; pages of a queue
dead_letters   the dead letters of every group
move_orders    orders that move queues: plan one, compare the state it was planned for, start it
"""
