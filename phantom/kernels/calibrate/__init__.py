"""Published measurements of kernels, and the constants fitted to them."""
