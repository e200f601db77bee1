"""The simulated world: virtual clock, network, disk, and the plan of a run.

trace     What happened, one aligned line per step, and a digest of all of it
world     The one clock, the one agenda and the one source of chance of a simulated cluster
network   A virtual network of hosts, with the manners of TCP
disk      A disk in memory that tears and forgets
shell     One simulated process
node      A host on which one process runs, ends, and is started again on what is left of its disk
layout    Requests that lay a static topic out
workload  What shall be sent, and what is known of each message
plan      What a seed decides before anything happens
"""
