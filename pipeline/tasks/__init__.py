"""Tasks: one folder each, found by the `kind` of the targets in `spec.json`."""
