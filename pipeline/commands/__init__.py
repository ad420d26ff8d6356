"""The verbs of `python -m pipeline`, one module each; `stage` runs the three stages."""
