"""Fair rates of flows that share links."""
