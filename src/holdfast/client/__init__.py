"""The client library: producers and consumers. What users need is in `holdfast` itself.

Pure modules decide: which queue and which retry (`send_plan`, `batching`), who serves what (`route_table`), whose
queues (`rebalance`), what to pull and what an answer means (`pull_plan`, `received`), what is done (`process_queue`),
what to commit (`offset_book`). The modules that import asyncio are the shells around them, from `cluster_client`, which
reaches servers, up to `producer`, `push_consumer` and `pull_consumer`, which users hold in their hands.

    messages/      Messages on their way in and out of the client
    routes/        Who serves which topic
    cluster/       The client's connection to a cluster
    produce/       Sending
    consume/       Consuming
    producer       Sending messages
    push_consumer  Consuming as a member of a group
    pull_consumer  Consuming at your own pace
"""
