"""The simulated clients of a cluster: producers, consumers, operators and tools.

Each is a machine like the broker, so that a shell runs it and the nemesis can strike it. What they see goes to the
checkers.

    client          the base class of all clients: connections, requests with deadlines, routes and heartbeats
    reset_consumer  a consumer whose group's offsets are reset while it consumes
    operator        an operator that moves, resumes, drains, resets and grows; a repairer of static topics
    forcer          an operator that moves the queues of a dead leader by force
    switcher        an operator that opens units to consumers of other units, and closes them again
    witness         receives what consumers see and do, and passes it to the checkers
    producer        a producer that sends until everything is acknowledged
    consumer        a member of a consumer group, concurrent or ordered
    probe           a sender of one message to every queue of a quiet cluster
    search          a tool that looks up messages by their unique key
    admin           two tools: one creates the topics, the other reads every stored message
    intruder        a program without a user, which every server with access control refuses
    survey          a tool that compares the routes of every name server with the running brokers
"""
