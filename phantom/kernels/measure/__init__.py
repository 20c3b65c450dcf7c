"""Measured durations: runs an operator on the device that is here, and stores what it took."""
