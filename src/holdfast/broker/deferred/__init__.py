"""Messages that become readable later: scheduled messages and transactions.

scheduled_messages   Delivers delayed messages when their time has come
half_messages        What half messages and op records say, and what a committed half message becomes
remote_transactions  Transactions whose half message is on one broker, and whose producers are connected to
others
transactions         Transactional messages
"""
