"""One family of clusters for tests, in three kinds. The same operation has the same name in each kind.

**Processes**: the installed command on real sockets and files. For what users meet, and for foreign clients. Seconds.

- `processes`: `ProcessCluster`, name servers and brokers by name, and the operator's commands
- `process_presets`: `units_cluster` (brokers of several units), `static_topic_cluster` (one static topic that is moved)
- `two_sites`: `TwoSites`, two units with a topic each, of which one is lost
- `up`: `Up`, a cluster that `holdfast up` started
- `console`: `ConsoleProcess`, the console of a cluster, and requests to its API
- `operator`: the `holdfast` command, as a process of its own or in this one
- `raw_requests`: requests in raw frames, and waiting for what servers answer
- `route_views`: routes as clients of each kind understand them
- `ports`: free ports

**Machines**: roles as state machines in this process, without sockets. For the behaviour of a role. Milliseconds.

- `machine`: `MachineHarness`, one machine and its channels: a name server, or anything else
- `name_server_machine`, `name_server_units`: name servers, and brokers that register at them
- `broker_machine`: `BrokerHarness`, one broker on a simulated disk; `a_send`, `a_pull`
- `broker_machines`: `StaticBrokers`, brokers that call each other, with static topics that the test writes as it likes
- `replica_machines`: `ReplicaPair`, a master and its replica
- `simulated_world`, `simulated`: `MovingCluster`, brokers and name servers in the simulated world, with time, faults
  and real moves

**Scripted**: an admin access that answers from a script, without any server. For commands and what they order.

- `scripted`: `ScriptedAccess`, which answer each request code gets
- `scripted_admin`: the whole admin library over such an access
- `scripted_topics`: `ScriptedTopics`, brokers that keep mappings and carry moves out at once
- `scripted_units`: `ScriptedUnits`, name servers that keep the switch of two units

The words:

- `start` a new server, `kill` it as a crash does, `stop` it in order, `restart` it with what it had
- `call` sends requests as they are and returns the answers; `request` sends one by its code and returns its answer
- `connect`, `disconnect` a client; `send`, `pull` messages; `make_topic`, `move` queues; `leaders` of a topic's queues
- `wait_until` polls for a condition; `pass_time`, `run` move the time of machines
"""
