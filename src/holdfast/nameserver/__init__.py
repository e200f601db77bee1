"""The name server: which broker serves which topic, and who is alive. Keeps nothing on disk but the KV store.

options   Everything an operator can set about a name server, with its default and its meaning
notices   What has to be told to whom, and when
request   How a request that is not on the hot path reaches a handler, and what a handler may answer
config/   Configuration that tools store at a name server, and its settings
routes/   Routes
cluster/  Registered brokers
push/     Route push
core      The name server as a machine
metrics   The numbers of a name server, read from the machine when somebody asks
service   The name server's shell
"""
