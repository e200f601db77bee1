"""The words between roles and shells.

A role (name server, broker) is a `Machine`: it is handed an event and returns effects. An event is something that
happened (bytes came, a timer fired, a sync ended) and carries the time; an effect is something that shall be done
(send bytes, sync the log). Between them there is only pure code: no socket, no clock, no chance. A shell performs
effects: `holdfast.runtime` with sockets and files, `holdfast.sim` with a virtual world.

The one exception is the disk: a store writes and reads through the `holdfast.store.base.disk.Disk` it was given,
because an append must have happened when the next line runs. Whatever may block for long (a sync, a cold read) is an
effect.

    effects   What a role asks its shell to do
    events    What can happen to a role
    machine   The one method every role has
    pressure  Whether memory is short
    readings  How busy the machine is
    reads     Answering the reads of one turn each by itself
    sample    One number that a role tells about itself
"""
