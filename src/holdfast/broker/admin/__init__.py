"""Request handlers for tools and operators.

Each handler serves one request code, which its docstring names (for example "Answer 200"). Tools are RocketMQ's mqadmin
and Holdfast's own.

    topic_admin    creates, changes, deletes and describes topics
    offset_reset   resets the offsets of a group in a topic (222)
    group_admin    creates, changes, deletes and describes consumer groups; their lag and offsets
    client_admin   lists connected clients, and passes requests on to them (203, 204, 223, 307, 309, 328, 400)
    broker_admin   runtime statistics, settings and clean-up of the broker
    static_admin   static topics, as RocketMQ's tools change them (513)
    mapping_admin  inspects and repairs mappings of logical queues
    queries        looks up messages, offsets, store times and index entries
"""
