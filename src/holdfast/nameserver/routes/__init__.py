"""Routes: which broker serves which queue of a topic, normal or static, and who may see it.

unit_visibility     Which queues a client sees
static_topics       Static topics
route_table         The route table
static_routes       How clients are told of a static topic
static_topic_store  What a name server keeps of static topics over its end
route_answer_cache  Route answers, rendered once
deletion_markers    Deletion markers at a name server
route_requests      Route queries (105) that the hot loop has no rendered answer for, and what those who watch a
topic see of it
"""
