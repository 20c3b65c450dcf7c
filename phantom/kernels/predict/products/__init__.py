"""Matrix products: which products an operator computes, and the time of one."""
