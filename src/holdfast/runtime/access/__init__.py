"""How clients and servers prove their identity on connections that they dial, and the files with secrets and users.

private_file         reads files that only their owner may have access to
credentials_source   credentials, fixed or with a secret from a file that is re-read when it changes
authentication       what a connection pool does between the dial and the first request
role_secrets_reader  the secrets of a role, from private files
audit_file           appends audit lines to a file
acl_folder           where the ACL 1.0 files are that a role follows
first_administrator  writes the first Super user of a role that does not run
"""
