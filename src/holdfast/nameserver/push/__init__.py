"""Route push: which client watches which topic, and how watching clients are notified of changes.

push_pacing    how often notices are sent, by the load of the machine
watches        which channel watches which topic
route_push     request handlers of watches, and the timer that sends notices
publication    what follows from the changes of an event, when it ends
"""
