"""Prediction rules: from a cost request to seconds, kernels launched and scratch memory."""
