"""What must hold in every run.

Each checker keeps a book of what clients saw and raises `Violation` when two entries cannot both be true.
"""
