"""The simulator: whole clusters in one thread, with a virtual clock, network and disk, all driven by one seed.

It runs the real broker and name server code; only the shell around it differs. Every fault that can occur between
machines occurs here, often, and a seed always reproduces the same run: `python -m holdfast.sim SEED`.

A site is a group of brokers that share static topics. The nemesis injects faults. A violation is a broken promise of
the system.

    world/     the virtual clock, network, disks and processes, and the plan of a run
    checkers/  the promises that must hold in every run
    actors/    the simulated clients: producers, consumers, operators and tools
    access     the secrets and users of a run with access control
    site       the brokers that share static topics, and the checkers of their logical queues
    cluster    all processes of one run: name servers, brokers and clients, with the checkers
    nemesis    the faults: kills, power cuts, partitions, disk errors, clock jumps
    run        one seed, from an empty world to a verdict
"""
