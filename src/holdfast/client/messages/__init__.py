"""Converts messages between the API and the wire.

Outgoing messages are checked and packed for their send request. The body of a pull answer is unpacked into the messages
that an application receives.

    arguments      checks the arguments of API calls
    namespace      adds a namespace to names and removes it
    packing        packs a message for its send request
    unpacking      decodes the body of a pull answer into messages
    retry_message  builds the request that sends a failed message to its group's retry topic
    in_flight      counts operations in flight, so that closing can wait for them
"""
