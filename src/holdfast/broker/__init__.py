"""The broker: takes messages, keeps them, hands them out. Pure but for `service.py`, its shell."""
