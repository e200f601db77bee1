"""The simulated world: virtual clock, network and disk, the processes on them, and the plan of a run.

A node is a host, a shell is the process on it, and a machine is the role that the process runs. All randomness comes
from the seed of the run.

    trace     the trace of a run, one aligned line per step, and its digest
    world     the clock, the agenda and the random number generators of a simulated cluster
    network   a virtual network of hosts that behaves like TCP
    disk      a disk in memory that tears and loses unsynced writes when the power fails
    shell     one simulated process: runs a machine in the virtual world
    node      a host whose process can be killed, stopped and restarted on the data that its disk kept
    layout    the requests that create or grow a static topic
    workload  the messages to send, with their keys, delays, outcomes and failures
    plan      the size, load and faults of a run, drawn from its seed
"""
