"""Sending: batching, order per key, transactions, and replies.

leader_lanes         To which broker the sends of each logical queue are under way
key_sequencer        Turns
inner_batch_support  Who keeps a batch whole
sender               Carries packed messages to brokers
batch_plan           Many messages into few requests
batch_lines          Batches that grow, and the lines in which they stand
send_many            Sends many messages in few requests
accumulator          Gathers single messages
transaction          A message that is delivered only if something else succeeds
request_reply        Requests that wait for another client's reply, carried by ordinary messages
"""
