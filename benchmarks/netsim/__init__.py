"""Benchmarks of netsim."""
