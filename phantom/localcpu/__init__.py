"""This machine's CPU as a cluster: Gloo and host costs, measured."""
