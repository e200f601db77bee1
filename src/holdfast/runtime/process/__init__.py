"""This process and its machine: limits, threads, forks, readings, and what is installed.

descriptors      how many files and connections this process may have open
libc             functions of the C library that Python does not offer
fork             callbacks for forked children
background_loop  an event loop in a background thread, for callers without asyncio
readings         memory, load and network use of this machine, from Linux
own_host         the address under which other machines reach this one
extras           install instructions for optional packages
"""
