"""The client library: producers and consumers. Applications import their classes from `holdfast`.

Pure modules decide: which queue and which retry (`send_plan`, `batch_plan`), which broker serves a topic
(`route_table`), which member owns which queue (`rebalance`), what to pull and what an answer means (`pull_plan`,
`unpacking`), which messages are done (`process_queue`), which offsets to commit (`committed_offsets`). The modules
that import asyncio are the shells around them, from `cluster_client`, which talks to servers, up to the three public
classes.

    messages/      converts messages between the API and the wire
    access/        proves to servers who the client is
    options        the options that all clients have
    routes/        finds the brokers of a topic: name servers, routes, route push
    cluster/       connects to a cluster: heartbeats, queue choice, calls to the broker of a queue
    produce/       the parts of a producer
    consume/       the parts of a consumer
    producer       `Producer`: sends messages
    push_consumer  `PushConsumer`: consumes as a member of a group
    pull_consumer  `PullConsumer`: consumes at the application's own pace
"""
