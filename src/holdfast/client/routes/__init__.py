"""Who serves which topic: route tables, name servers, and route push.

missing_topics         The topics of which it is known that they do not exist, and no more of them than there is
room for
route_table            What a client knows about who serves which topic
name_server_choice     Which name server to ask
name_server_discovery  Where the list of name servers comes from
route_watch            Of which topics the name server in use was asked to tell us, and whether it does
name_server_session    The one name server that a client asks and is told by, and what happens when it becomes
another one
route_refresher        Keeps the routes of a client up to date
"""
