"""How a peer proves its identity on the wire, and the requests that manage users and rules.

signature   the signature of a request: HMAC-SHA1 over its fields and its body
login       challenge and response, once per connection
login_attempt  the dialing side of one attempt to log in
client_login  the client's side of a login, step by step
throttle    a server asks a client to wait
bodies      headers and bodies of the requests that manage users and rules
records     the records of a directory, on disk and between servers
"""
