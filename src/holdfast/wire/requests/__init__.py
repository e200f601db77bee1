"""Headers and bodies of requests, by subject.

relay         Requests that one broker passes on to another
forward       Messages of a broker's own making, sent to the leader of their logical queue
exchange      Requests that wait for their answers on one connection
send          Sending
send_request  Encode sends (310, 320, 325) and decode their answers
pull          Pulling
offsets       Offsets and lookups
sink          What a writer that wants every row exactly once says about a batch of messages, and what each
record keeps of it
moves         What brokers, and operators, say to each other about moving logical queues
heartbeat     Who is there
admin         What tools ask a broker
"""
