"""A folder for each task. Its name is the `kind` of the targets in spec.json, and the value of `evaluate.name`."""
