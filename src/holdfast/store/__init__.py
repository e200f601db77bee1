"""The log engine, on a disk that it is given."""
