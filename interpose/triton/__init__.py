"""Triton on the virtual GPU: its compiler runs unmodified, its launches become priced kernels (README.md)."""
