"""Connects a client to a cluster: routes, heartbeats, the choice of a queue, calls to the broker of a queue.

Producers and consumers reach name servers and brokers only through `ClusterClient`.

    heartbeat       builds the requests that announce a client to brokers and unregister it
    server_request  a request that a server sends to this client, and the type of its handlers
    cluster_client  owns the connections to name servers and brokers, the routes and the heartbeats of one client
    send_plan       chooses the queue of a message, and decides whether and when to retry a send
    queue_rpc       calls brokers for a consumer group: offsets and members
"""
