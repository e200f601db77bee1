"""Registration at the name servers, and the DR switch that registrations carry.

dr_switch_sync  the switch for the loss of a site, passed on from one name server to the others (7051, 7052)
registration    registers this broker at every name server, periodically and after changes (103, 104)
"""
