"""The interface between roles and shells: events and effects.

A role (name server, broker) is a `Machine`: it receives an event and returns effects. An event is something that
happened (bytes arrived, a timer fired, a sync ended) and carries the time. An effect is work to be done (send bytes,
sync the log). Between them runs only pure code: no socket, no clock, no randomness. A shell performs the effects:
`holdfast.runtime` with sockets and files, `holdfast.sim` in a simulation.

The one exception is the disk. A store writes and reads directly through its `holdfast.store.base.disk.Disk`, because an
append must be complete before the next line runs. Anything that may block for long (a sync, a cold read) is an effect.

    events            Everything that can happen to a role
    effects           Everything that a role can ask its shell to do
    turn              The event at hand: the only way for a component to cause effects
    request           Requests, answers and refusals, and the type of a handler
    audit             Audit lines for requests that change something
    kept_file         A value that a role keeps in one small file
    security_options  The security settings that every role has
    role_options      All settings that every role has
    component         The protocol by which a role puts its parts together
    machine           The protocol that every role implements
    pressure          Memory that connections use, and whether it is too much
    readings          Load of the host: memory, processor, network
    sample            One exported metric value of a role
    reads             Isolation of faults between the channels of one turn
"""
