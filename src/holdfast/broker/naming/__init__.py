"""Registration at the name servers, and what all servers must know: the DR switch, users and rules.

A broker registers itself and its topics at every name server. Registrations also carry the DR switch and deletion
markers from one name server to the others.

    dr_switch_sync  the switch for the loss of a site, passed on from one name server to the others (7051, 7052)
    access_sync     exchanges users and rules with the name servers (7062)
    registration    registers this broker at every name server, periodically and after changes (103, 104)
"""
