"""The simulator: whole clusters in one thread, with a virtual clock, network and disk, from one seed.

The roles are the real ones, byte for byte; only their shell is another. Everything that can go wrong between machines
goes wrong here, often, and the same way again whenever the same seed is run: `python -m holdfast.sim SEED`.

    world/     The simulated world
    checkers/  What must hold in every run
    actors/    What acts on a simulated cluster
    site       Brokers that have static topics together, and the books that the checkers keep of their logical
               queues
    cluster    A whole cluster, ready to be lived through
    nemesis    Breaks things
    run        One seed, from an empty world to a verdict
"""
