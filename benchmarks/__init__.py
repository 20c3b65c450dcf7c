"""Benchmarks: ratios measured within one run, never timed tests."""
