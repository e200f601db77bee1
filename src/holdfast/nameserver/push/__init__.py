"""Route push: who watches which topic, and when watchers are notified of a change.

push_pacing  How often clients are told of changed routes, by how busy the machine is
watches      Who wants to be told when the route of which topic changes
route_push   Tells clients that the routes they watch have changed
"""
