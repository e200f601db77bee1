"""Logical queues as this broker records them: which segment of which queue is here, and which broker leads it.

segment_ends     Where the homes of this broker end
mapping_journal  What happens to the logical queues of a broker, as records of its own log
mapping_table    The logical queues of static topics, as this broker records them, and what they mean for its
physical queues
cluster_view     What this broker believes of the others
segment_queries  Questions about a logical queue that its leader answers, some of them with the help of brokers
that led it before
offset_rewrite   Records for clients that know no offset delta
"""
