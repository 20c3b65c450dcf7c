"""Chakra execution traces of a recorded run, as ASTRA-sim 2 reads them."""
