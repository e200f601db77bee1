"""The broker's small tables: topics, groups, clients, queue locks and statistics.

All tables are in memory. Topics, groups and deletion markers are also persisted, as JSON files in `config/`.

    config_store      loads and saves the configuration files, with a `.bak` as fallback
    unwritten_files   configuration files whose last write failed because the disk is full
    creation_limit    limits how many topics or groups clients can create at once
    deletion_markers  markers of deleted topics, kept and passed on to every name server
    topics            the topics on this broker (`config/topics.json`)
    groups            the consumer groups on this broker (`config/subscriptionGroup.json`)
    clients           connected producers and consumers, and the subscriptions of their groups
    client_calls      requests that the broker puts to a client for a tool or another client
    locks             queue locks of orderly consumers
    stats             counters of puts and gets, and their rates
"""
