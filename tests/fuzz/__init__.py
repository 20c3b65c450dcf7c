"""Hostile input, one file per target: each gives a result or one sentence (README.md)."""
