"""The command line: one file per noun. Parses, asks `holdfast.admin` or the client, prints. Decides nothing else.

help_style           How the help of every command looks
broker_keys          What the keys mean under which a broker reports its figures and settings
progress             How far a long job is, on standard error, and only where somebody watches
profiles             Saved clusters
shared_options       Options that several commands have in common, said once
completion           What the shell offers after TAB
arguments            Arguments and options that commands of several nouns take, with their completion
session              What every command that talks to a cluster shares
queue_position_text  Times and places in a queue, as people write them
message_text         How one message looks
move_output          What every command that moves queues shares
commands/            The commands
main                 The command `holdfast`
"""
