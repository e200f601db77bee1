"""How the broker processes one event: requests and suspended procedures.

A procedure is a coroutine that can wait in the middle, for log bytes, a sync, another server or time. A handler answers
one request code and may be a procedure. Everything that it causes goes through the turn (`machine/turn.py`).

    component     kinds of components of a broker
    awaitables    the conditions that a procedure can wait for
    request       a request, the answers to it, and the types of a handler and a timer
    refusals      `refuse_on_error`, which turns the exceptions of a handler into error responses
    peer_login    the login of this broker at a server that it has dialed
    reply_gate    holds replies until their records are on disk, and at a replica (synchronous flush, replication)
    rpc           requests from this broker to other brokers, name servers and clients, with connections and timeouts
    scheduler     runs procedures and resumes them when their condition is met
"""
