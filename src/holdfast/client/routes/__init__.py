"""Finds the brokers of a topic: route tables, name servers, and route push.

A *route* lists the brokers and queues of a topic. A client polls routes from one name server at a time. A name server
that supports route push also *watches* topics for the client and notifies it when their routes change.

    missing_topics         remembers a bounded number of topics that do not exist
    route_table            holds the routes that a client knows, and decides which are due for a poll
    name_server_choice     parses the list of name servers and chooses the one to ask
    name_server_discovery  resolves the list of name servers: host names and address servers
    route_watch            tracks which topics the name server in use watches for us
    name_server_session    asks the name server in use, fails over to the next one, receives route push
    route_refresher        keeps the routes of a client up to date
"""
