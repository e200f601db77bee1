"""The commands of `holdfast`, one module per noun. Each module has a `register` function that adds its commands.

serve         `holdfast serve namesrv|broker`: run one role in this process
console       `holdfast serve console`: run the console in this process; `main` loads it unless a role is started
up            `holdfast up`: run a name server and brokers on this machine
send          `holdfast send`: send messages
tail          `holdfast tail`: print messages of a topic
message       `holdfast message`: find messages by key or id
queue         `holdfast queue`: logical queues of a static topic
static_topic  the verbs of `holdfast topic` for static topics
topic         `holdfast topic`: create, inspect, change and delete topics
group         `holdfast group`: consumer groups
broker        `holdfast broker`: inspect, drain and remove brokers
cluster       `holdfast cluster`: inspect the cluster, rebalance logical queues
move          `holdfast move`: list, cancel and resume moves
dr            `holdfast dr`: open and close units after the loss of a site
profile       `holdfast profile`: saved clusters
tls           `holdfast tls`: certificates for development
user          `holdfast user`: users of a cluster with access control
acl           `holdfast acl`: what users may do
bench         `holdfast bench`: a small load test
index         `holdfast index`: convert the index of a stopped broker
pipeline      `holdfast pipeline`: Spark jobs over store folders
"""
