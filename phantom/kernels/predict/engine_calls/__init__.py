"""Whole calls of inference engines and of DeepEP, as published tables time them."""
