"""Messages on their way in and out of the client.

arguments      Checks of what callers pass to the client library, at the call itself
namespace      Names within a namespace
packing        From a message to what its request carries
unpacking      From the body of a pull answer to messages as users see them
retry_message  A message that failed, as it goes to the retry topic of its group under its own power
in_flight      Counts what is under way, so that closing can wait for it
"""
