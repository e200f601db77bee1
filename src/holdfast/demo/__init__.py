"""Shows what Holdfast is for, and proves it: a cluster goes from 2 brokers to 4 and to 1 under load.

make demo         clicks    a streaming click count in Spark runs on, and the last broker is killed, too
make demo-core    orders    an ordered group in Python; needs neither Spark nor Java

screen     says what happens          timeline   keeps it           picture   draws it
stage      the cluster, and what is done to it                      ledger    who sent what, and what arrived
"""
