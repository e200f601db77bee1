"""Asyncio and POSIX around the pure roles: sockets, clock, threads, files. Decides nothing."""
