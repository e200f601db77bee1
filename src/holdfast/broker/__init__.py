"""The broker: takes messages, keeps them, hands them out. Pure but for `service.py`, its shell.

options          Everything an operator can set about a broker, with its default and its meaning
flow/            How one event passes through the broker
tables/          The broker's small tables
mapping/         Logical queues as this broker records them
naming/          Registration at the name servers, and the state that travels with it
messages/        Stored messages
consume/         Reading
relay/           Requests that another broker must answer
deferred/        Messages that become readable later
produce/         Sends
move/            Moving a logical queue to another broker without losing, repeating or reordering a message
failover/        Dead leaders
replication/     Replicas
admin/           Requests of tools and operators
assembly         The rooms of a broker, and which of them answers what
completion       What leaves the broker
dispatch         What reaches the broker
core             The broker as one machine
metrics          The numbers of a broker, read from its rooms when somebody asks
recovery_report  What a start tells the operator about the store that it found
service          The broker's shell
"""
