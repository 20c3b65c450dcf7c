"""Version and size limits of the protocol, for both sides. This file imports nothing."""

from __future__ import annotations

PROTOCOL = 2
"""Version of the records. A rank and a simulator of different versions refuse each other at HELLO."""

MAX_MESSAGE_BYTES = 64 << 20
"""Largest gRPC message in either direction."""

MAX_VALUE_BYTES = 16 << 20
"""Largest value of a tensor that travels; a larger combined value is unknown."""

MAX_PS = 1 << 61
"""Latest point in virtual time, in picoseconds (26 days): sums of two stay below the engine's infinity."""

MAX_RANKS = 1 << 20
MAX_GPUS = 1 << 16
"""Most GPUs of a simulated cluster: its topology is built in seconds and below 2 GB."""

MAX_SEQUENCE = (1 << 27) - 1
"""Operations of one communicator or pair: their numbers share an int64 with a hash of the pair."""

MAX_BYTES = 1 << 53
"""Largest size of a message or copy (8 PiB): exact as a float64, in which the network computes."""

CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.enable_http_proxy", 0),
)
"""Options of every client's gRPC channel."""

THREAD_KEY, FUTURE_KEY = "phantom/thread/", "phantom/future/"
"""Prefixes of the store keys that threads and a pool's work items post as their last act."""
