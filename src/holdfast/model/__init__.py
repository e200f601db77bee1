"""Values that every other package uses. Imports no other package of ours and does no I/O.

A *static topic* has a fixed number of *logical queues*. A logical queue consists of *segments*; each segment maps a
range of logical offsets to a physical queue of one broker. The broker of the newest segment is the *leader*. A *move*
changes the leader; a *forced* move does so although the old leader cannot be reached.

    numbers            the widths of numbers on the wire and on disk
    queue              names of queues, offsets and positions
    errors             the errors that callers see
    property_names     the message properties that the system uses
    java_hash          Java's `String.hashCode`, which tags and keys use
    topic              topic configuration, and the names of system topics
    group              consumer group configuration, and subscriptions
    filter             tag expressions of subscriptions
    message            a message before it is sent and after it is received
    unique_id          the id that a client gives each message it sends
    delay              the fixed levels of delayed delivery
    spelling_hint      the known word that is closest to an unknown one
    scope              where a static topic is fixed, and the mock broker names of its logical queues
    segment            a range of logical offsets in one physical queue of one broker
    logical_queue      the segments of one logical queue, and the steps of a move
    floor              the lowest offset at which a logical queue may begin again
    mapping            a broker's record of a static topic, and the merge of all brokers' records
    leadership         the leader of each logical queue, derived from what brokers registered
    route              the brokers and queues of a topic
    leader_planning    plans for which broker leads which logical queue
    deletion           markers of deleted topics
    access/            users, resources and rules
    dr_switch          the switch that opens a lost site's queues to other units
"""
