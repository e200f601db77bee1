"""The broker's small tables: topics, groups, clients, locks, statistics, and the files that keep them.

config_store      The broker's own small files, typed
unwritten_files   Tracks the configuration files that the disk has no space for, and logs when that begins and
ends
topics            The topics this broker hosts, kept in `config/topics.json`
creation_limit    How many topics or groups strangers may bring into being at once
deletion_markers  Deletion markers as a broker keeps them and carries them from one name server to the others
groups            The consumer groups this broker knows, kept in `config/subscriptionGroup.json`
clients           Who is connected
client_calls      Questions that only a client can answer, put to it on behalf of somebody else (221, 307, 309,
326)
locks             Who may consume a queue in order
stats             How much is put and got
"""
