"""Package sim/world."""
