"""Users and rules as a role keeps them, and the check that every request passes. Name servers and brokers share it.

directory_store   the users and rules of a role, in memory and in one private file
acl_file_reader   reads RocketMQ's ACL 1.0 files (YAML)
acl_follower      follows these files, and uses them beside the directory
authority         what the directory and a followed ACL 1.0 file say about a user
role_secrets      what only this role and its cluster know
sessions          who sends on each channel
login_server      logins at this role (7060, 7061)
limits            limits for the clients of a role, around the role
scrape_guard      who may read the metrics of a role
door              admits or refuses every request
sync_requests     answers servers that send users and rules (7062)
user_requests     answers administrators who manage users (3001 to 3005)
rule_requests     answers administrators who manage rules (3006 to 3010)
"""
