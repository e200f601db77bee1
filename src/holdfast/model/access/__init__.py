"""Who may do what: users, resources and rules, in the model of RocketMQ's ACL 2.0. Pure values.

A *user* proves its identity with a *secret*. A request needs *permissions*: each is a resource and the actions of which
at least one must be allowed. The *rules* of a user allow or deny actions on resources; without a rule nothing is
allowed.

    client_tls       how a program that opens connections uses TLS
    credentials      the name and the secret with which a client or a server proves its identity
    identity         who sends a request
    resource         resources, actions, and the permissions that a request needs
    refusal          the error of a refused change
    source_address   sets of IP addresses from which a rule applies
    user             a user and its secrets
    rule             what a user may do, or may not do, on which resources
    directory        all users and rules, as versioned records that servers merge
    decision         whether a user has a permission, and which rule decides
    acl_file         RocketMQ's older ACL 1.0: its accounts, as users and rules
"""
