"""The simulator: whole clusters in one thread, with a virtual clock, network and disk, from one seed.

The roles are the real ones, byte for byte; only their shell is another. Everything that can go wrong between machines
goes wrong here, often, and the same way again whenever the same seed is run: `python -m holdfast.sim SEED`.
"""
