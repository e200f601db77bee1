"""The values everything else speaks in. Imports nothing of ours and nothing of the world."""
