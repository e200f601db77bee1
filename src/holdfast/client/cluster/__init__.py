"""The client's connection to a cluster: heartbeats, and calls to the broker of a queue.

heartbeat       What a client tells every broker about itself, every 30 seconds and whenever it changes
cluster_client  Reaching a cluster
send_plan       Which queue a message goes to, and what to do when that did not work
queue_rpc       What a consumer group asks brokers about queues
"""
