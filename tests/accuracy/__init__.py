"""Predictions against published numbers."""
