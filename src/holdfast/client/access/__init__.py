"""Proves to servers who the client is: by one login per connection, or by a signature on every request.

A client *logs in* to Holdfast's servers: both sides prove that they know the secret, and later requests cost nothing.
Other servers know no login, so that every request to them is *signed*. A signed request can be replayed by anyone who
sees it; a login cannot.

    credentials_options  what an application passes: access key, secret or secret file, and the mode
    refusal              distinguishes refusals of access control from others
    authenticator        authenticates connections, again when the secret changes
"""
