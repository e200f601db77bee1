"""The demos: a cluster goes from 2 brokers to 4 and to 1 under load, and every message is accounted for.

`make demo` runs `clicks`, a streaming click count in Spark whose last broker is also killed. `make demo-core` runs
`orders`, an ordered consumer group that needs neither Spark nor Java.

    clicks    `make demo`
    ledger    A keyed load, and the books about it
    orders    `make demo-core`
    picture   The timeline and the proof as one picture, in SVG
    proof     What the demo with Spark promises, counted
    queries   The two queries of the demo with Spark, and the dashboard that shows what they count
    screen    Says what happens while it happens, and keeps it for the end
    stage     The cluster of a demo, and what is done to it
    timeline  What happened when, as it is told at the end
"""
