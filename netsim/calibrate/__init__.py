"""Published measurements, and fitting a cluster to them."""
