"""Kills and stops the processes of small runs at random moments (README.md)."""
