"""The demos: a cluster grows from 2 brokers to 4 and shrinks to 1 under load, and every message is accounted for.

`make demo` runs `clicks`, a streaming click count in Spark whose last broker is also killed. `make demo-core` runs
`orders`, an ordered consumer group that needs neither Spark nor Java.

    ledger    a keyed load, and the record of acknowledged and arrived messages
    timeline  the events of a demo, the uptime of its brokers, and its message counts over time
    screen    the progress output, which also feeds the timeline
    stage     the cluster of a demo: start, grow, shrink, kill
    orders    the demo without Spark: `make demo-core`
    proof     the promises of the Spark demo, checked by counting
    queries   the two Spark queries, and the dashboard that shows their counts
    picture   the timeline and the proof as one SVG picture
    clicks    the demo with Spark: `make demo`
"""
