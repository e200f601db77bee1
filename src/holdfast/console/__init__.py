"""The console: an HTTP API over the operations of `holdfast.admin`, and pages that show a cluster live.

The API is a table of endpoints: a row has a path, a struct of parameters and the type of its answer. Routing, the check
of parameters, the OpenAPI document and the page of the API's documentation are all made from it. Server-sent events
report what changes; one poller reads the cluster for all listeners, and only while there are any.

    options           where the console listens, and which cluster it shows
    problems          what went wrong and what to do, as JSON with an HTTP status
    endpoints         `Endpoint`, a row of the table; decorators that add rows; conversion of parameters
    poller            reads what changes, once for all listeners
    plans             plans that were shown and not applied yet
    context           what handlers get: the cluster, plans, the poller
    read_cluster      endpoints: cluster, brokers, moves, units, users and rules
    read_topics       endpoints: topics, their maps, routes and offsets
    read_groups       endpoints: groups, lag, dead letters
    read_messages     endpoints: messages by queue, time, key and id
    move_changes      endpoints: plan, apply, cancel and resume moves
    openapi           the OpenAPI document
    docs_page         the page that shows it
    events            server-sent events
    gate              refuses foreign hosts and origins; adds the headers of security
    static_files      the files of the pages
    app               the web application
    service           the shell: listens, runs the application
"""
