"""Routes: which broker serves which queue of a topic, normal or static, and which clients see it.

The name server merges what brokers report about a static topic. It withholds the result while the reports are
incomplete or contradictory, and keeps serving the last usable one. An aware client reads mappings; for other clients a
mock broker has all queues of the topic, and a live broker that relays stands in for it.

    unit_visibility       which queues a client sees and may write to, by its unit and zone
    static_topics         reports about static topics, merged and served
    route_table           brokers, normal topics, and the bodies of normal routes
    static_routes         the bodies of static routes: for aware clients, for others, and for brokers
    static_topic_store    the file that preserves static topics across restarts
    route_answer_cache    cache of rendered route answers
    open_units            the switch that opens units for the loss of a site
    deletion_markers      deletion markers of topics: saved, and exchanged with brokers
    route_requests        route queries (105) that the hot loop cannot answer
"""
