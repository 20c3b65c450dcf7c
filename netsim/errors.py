"""Errors of netsim."""

from __future__ import annotations


class NetsimError(Exception):
    """Base of all errors that netsim raises on purpose."""


class ClusterError(NetsimError, ValueError):
    """A cluster description is wrong; the text names file, key, value and what is allowed."""


class OperationError(NetsimError, ValueError):
    """An operation cannot be carried out on this cluster: wrong ranks, sizes, or no path left."""
