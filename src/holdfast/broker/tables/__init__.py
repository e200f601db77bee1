"""The broker's small tables: topics, groups, clients, queue locks and statistics.

All tables are in memory. Topics, groups and deletion markers are also persisted, as JSON files in `config/`.

    config_file        a file in `config/`: JSON as RocketMQ writes it, with a `.bak`
    kept_files         the kept files of all components: saved together, reported while the disk is full
    journal            records of a system topic that repeat the changes of a table at the next start
    creation_limit     limits how many topics or groups clients can create at once
    deletion_markers   markers of deleted topics, kept and passed on to every name server
    topics             the topics on this broker (`config/topics.json`)
    groups             the consumer groups on this broker (`config/subscriptionGroup.json`)
    remote_members     members of groups that are connected to other brokers, as those report them
    clients            connected producers and consumers, and the subscriptions of their groups
    locks              queue locks of orderly consumers
    stats              counters of puts and gets, and their rates
"""
