"""Attaches this process before a test file imports torch."""

from __future__ import annotations

from .attached import attach

attach()
