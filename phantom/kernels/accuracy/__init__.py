"""The predictor's error on published rows: ``python -m phantom.kernels.accuracy``."""
