"""Requests of tools and operators.

topic_admin    Topics as tools see them
offset_reset   Sends a group to another place in a topic (222)
group_admin    Consumer groups as tools see them
client_admin   Connected clients as tools see them, and questions passed on to them (203, 204, 223, 307, 309,
328, 400)
broker_admin   The broker itself as tools see it
static_admin   Static topics as upstream's tools change them (513)
mapping_admin  Logical queues as operators see and mend them
queries        Looking things up
"""
