"""The parts of a producer: sending, batching, order per key, transactions, requests and replies.

A *parcel* is a packed message or batch on its way to a broker. A *line* is the FIFO of batches for one queue, or for
the messages of a topic that have neither key nor queue. A *whole batch* is stored by its broker as one record, an
inner batch.

    leader_lanes         keeps the sends of a logical queue in flight to one leader at a time
    key_sequencer        sends messages of the same key one after another
    inner_batch_support  finds out which brokers store the batches of a topic whole
    sender               sends parcels to brokers, with retries
    batch_plan           decides which messages are sent together, and encodes them
    batch_sender         sends the batches of a line, and reports to each its outcome
    batch_lines          the options, open batches and lines of the accumulator
    accumulator          collects single messages into batches
    send_many            sends a list of messages in few requests, and gathers their results
    transaction          transactional messages and the answers to transaction checks
    request_reply        requests that wait for a reply of another client
"""
