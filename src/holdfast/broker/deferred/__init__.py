"""Messages that become readable later: delayed messages and transactions.

A delayed message is stored in the queue of its delay level and delivered to its topic when it is due. A half message is
a transactional message that its producer has not committed or rolled back yet. An op record marks a half message as
decided.

    scheduled_messages     delivers delayed messages when they are due
    half_messages          decodes half messages and op records, and builds the committed message
    remote_transactions    transactions whose half message and producers are on different brokers
    transactions           stores, decides and checks half messages (37, 39)
"""
