"""Finished runs in the formats of other tools: Chakra, Kineto, memory snapshots."""
