"""How one event passes through the broker: the request, what a handler waits for, and what leaves when the event ends.

request       How a request reaches a room of the broker, and what a room may answer
refusals      Handlers whose work may break a rule of logical queues in the middle
awaitables    What work may wait for in the middle
peer_calls    Requests that the broker itself makes of other servers
scheduler     Work that has to wait in the middle
turn          What rooms want done besides what they are asked at the moment
held_replies  Answers that wait until what they promise is on disk
"""
