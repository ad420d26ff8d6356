"""Metrics over a whole split, one module each: the values of `train.metrics` and `evaluate.metrics`."""
