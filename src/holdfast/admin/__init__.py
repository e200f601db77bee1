"""Admin operations on a cluster as a library, with the table printing that the command line and other tools share.

Operations are grouped by noun (topics, groups, queues, brokers, ...). Most changes have two steps: the first returns a
*plan*, a frozen value that can be printed (`--dry-run`), and the second carries it out. `Admin` in `operations` holds
every group of operations.

    cluster_access  connections and requests to name servers and brokers; the errors of operations
    route_push      which name servers push changed routes, to how many clients and how often
    cluster         status and configuration of clusters and brokers
    topics          normal topics: list, describe, create, change, delete
    groups          consumer groups: members, lag, settings
    offsets         queue ranges, committed offsets, resets
    messages        find stored messages by key or id
    reading         read queues without a consumer group
    static_topics   static topics as brokers record them, merged
    previews        mapping tables before and after planned moves
    moves           plan, start, follow, cancel and resume moves of logical queues
    forced_moves    forced moves away from a dead leader, and abandoning its segments
    draining        what still keeps a broker from being removed, and its removal
    topic_plans     plans to create, grow, convert or repair a static topic, broker by broker
    floors          the lowest offset at which a logical queue without a leader may begin
    static_changes  carry out plans for static topics
    units           open and close units (`holdfast dr`), and the backlog of an open unit
    access_control  users and their rules: list, create, change, delete, explain, import
    operations      `Admin`, the entry point: all operations on one cluster
    combined/       operations over several nouns, for the command line and the console
    cluster_start   the plan of a local cluster for `holdfast up`: ports, folders, commands
    table_layout    fit a table into the width of a terminal
    tables          print tables, facts and JSON
"""
