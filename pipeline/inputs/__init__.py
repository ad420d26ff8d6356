"""Kinds of inputs: one folder each, found by the `kind` in `spec.json`."""
