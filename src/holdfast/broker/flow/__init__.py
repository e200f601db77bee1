"""How the broker processes one event: requests, suspended procedures, and the effects that leave when the event ends.

A procedure is a coroutine that can wait in the middle, for log bytes, a sync, another server or time. A handler answers
one request code and may be a procedure. An effect is an action that the shell performs.

    awaitables    the conditions that a procedure can wait for
    request       a request, the answers to it, and the type of a handler
    refusals      `refuse_on_error`, which turns the exceptions of a handler into error responses
    peer_calls    requests from this broker to other brokers and name servers, with their connections and timeouts
    held_replies  replies that wait until their records are synced to disk
    scheduler     runs procedures and resumes them when their condition is met
    turn          effects, procedures and replayed frames that components queue until the event ends
"""
