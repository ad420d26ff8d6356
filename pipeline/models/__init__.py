"""The architectures: each module is one value of `model.name`."""
