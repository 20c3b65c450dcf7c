"""This machine's CPU as a cluster: Gloo, measured."""
