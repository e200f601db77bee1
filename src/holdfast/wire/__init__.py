"""Bytes to values and back: RocketMQ's remoting protocol and record format. No I/O."""
