"""Ranks that are forks of a process with torch loaded."""
