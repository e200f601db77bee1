"""Reading: pulls, long polls, committed offsets and lag.

index_scan        Which index entries a pull is answered with
batch_splitting   What a pull gets of an index by record if its reader cannot open batches, or must not get all
of one
delivered_ranges  Whose logs the records are in that clients got by way of this broker
long_poll         Pulls that found nothing and wait for the next message of their queue, or for their deadline
physical_pull     What a pull finds in one physical queue, and the answer made of it
logical_pull      Pulls of logical queues, at their leader
consumer_offsets  How far each group has consumed each queue, kept in `config/consumerOffset.json`; codes 14, 15
and 43
consumed_topics   Which groups consume which topics, as reported by the other brokers of the cluster (7035)
lag               How far groups are behind
pull              Handing messages out
"""
