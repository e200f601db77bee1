"""The asyncio and POSIX shells around the pure roles: sockets, clock, threads, files. Makes no decisions.

A *channel* is one TCP connection. A *role* is a broker, a name server or another pure machine; it handles events and
returns effects, which the shell performs.

    access/            how a client or a server proves its identity on the connections that it dials
    process/           this process and its machine: limits, threads, forks, readings
    address            addresses as people write them: parsing, and errors about ports in use
    logs               log lines for the operator: format, throttling, records of libraries
    budget             the memory limit for all connections of a server
    channel            one TCP connection that carries frames
    stream             one TCP connection that carries raw bytes
    tls                TLS contexts, rebuilt when their files change
    accept             accepted connections that may begin with TLS
    pool               outgoing connections: requests, answers, redialling
    throttle           the wait that a server has asked an outgoing connection for
    posix_disk         a folder of a real file system as a `Disk`
    folder_lock        locks that keep a folder to one process
    log_sync           group commit in a background thread
    exposition         samples and health as an HTTP application
    metrics            the HTTP port for `/metrics` and `/health` of a role
    server             runs one role on sockets, timers and threads
    role_server        what every role serves with: access, limits, metrics and the audit file around its server
    supervisor         starts and restarts child processes
"""
