"""Asyncio and POSIX around the pure roles: sockets, clock, threads, files. Decides nothing.

address          Addresses as people write them
background_loop  An event loop in a background thread, for callers that are not asyncio
budget           How much memory all connections of a server may hold together, and who goes when it is spent
channel          One TCP connection
exposition       The HTTP face of `metrics.py`
extras           The packages that only some parts of Holdfast need, and the words for how to install them
folder_lock      One process at a time on a folder
fork             What happens in a forked child to objects that only their own process may use
libc             What the C library can do that Python has no name for
log_sync         Group commit
logs             What a role tells its operator
metrics          `/metrics` (Prometheus text) and `/health` of a role, on an HTTP port of their own
own_host         The address under which other machines reach this one
pool             Connections that we dial
posix_disk       A folder of a real file system as a `Disk`
readings         How busy this machine is, as Linux tells it
server           Runs one machine
stream           One TCP connection that speaks no frames
supervisor       Keeps a few child processes running
"""
