"""Registration at the name servers, and the state that travels with it.

dr_switch_sync  The switch for the loss of a site, as a broker carries it from one name server to the others
(7051, 7052)
registration    Presents the broker to every name server
"""
