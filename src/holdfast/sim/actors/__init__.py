"""Package sim/actors."""
