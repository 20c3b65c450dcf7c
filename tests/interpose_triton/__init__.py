"""Dispatcher kernels and values of the virtual GPU, judged in one process."""
