"""What acts on a simulated cluster: producers, consumers, operators and tools.

client          What every simulated client shares
reset_consumer  A member of a group that operators send back and forth while it consumes
operator        People who move logical queues
forcer          Moves the queues of a dead leader by force
switcher        An operator who opens units to the consumers of others, and closes them again, as `holdfast dr`
does
producer        A simulated producer
consumer        A simulated member of a consumer group, concurrent or ordered
probe           Sends one message to every queue of a quiet cluster, to see how long they take to be consumed
search          Looks up some messages by their unique key
admin           Two simulated tools
survey          Asks every name server who serves the topics of a run, and compares with who is really there
witness         Sees what consumers see and do, and asks the checkers whether it can be
"""
