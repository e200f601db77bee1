"""The values everything else speaks in. Imports nothing of ours and nothing of the world.

dr_switch        The switch for the loss of a site
spelling_hint    The known word that an unknown one may have been meant for
leader_planning  Who should lead which logical queue
delay            The fixed levels of delayed delivery
deletion         Deletion markers
errors           What can go wrong, as the caller sees it
filter           What a consumer wants of a topic
floor            The floor of a logical queue
group            Consumer group configuration and what a group's members subscribe to
java_hash        Java's `String.hashCode`, which the format uses for tags and keys
leadership       Who leads each logical queue of a static topic, as far as a client can tell from what brokers
registered
logical_queue    Where the records of one logical queue live
mapping          The logical queues of a static topic
message          A message, before it is sent and after it was received
numbers          How wide numbers are on the wire and on disk
property_names   Names of the properties that mean something to the system
queue            Names of queues
route            Who serves a topic's queues
scope            Where a static topic is fixed, and the broker names that its logical queues wear
segment          A run of logical offsets that lives in one physical queue of one broker
topic            Topic configuration, and the topic names that mean something to the system
unique_id        The id that a client gives each message it sends, as upper-case hex
"""
