"""Predicted durations: constants per architecture, one rule per kernel class."""
