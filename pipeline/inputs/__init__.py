"""Kinds of inputs: one folder each, found by the `kind` of the inputs in `spec.json`."""
