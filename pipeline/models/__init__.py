"""Open family: one module is one architecture and one value of `model.name`."""
