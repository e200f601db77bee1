"""Operations on a cluster, as a library: what the command line does, without its printing.

cluster_access  How an operation reaches servers
cluster         Clusters and brokers
cluster_start   A cluster on this machine, planned
draining        When a broker can be removed
floors          Where a logical queue without a leader may begin
forcing         When a leader is dead
groups          Consumer groups
messages        Finding stored messages
moves           Moving logical queues
offsets         Where queues begin and end, which offset a time has, where a group goes on
operations      The library behind the command line
previews        What a mapping would look like after moves, before anybody moves
reading         Reading queues from outside any group
route_push      Which name servers tell clients of changed routes, to how many, and how often
static_changes  Carrying out changes of static topics
static_topics   Static topics of a cluster
table_layout    Fits a table into the width of a terminal, so that no word and no id is broken
tables          How answers look to people, and to programs
topic_plans     What creating, growing, converting or repairing a static topic means, broker by broker
topics          Topics
units           Opening and closing units (`holdfast dr`), and what is left of the backlog of one that is open
"""
