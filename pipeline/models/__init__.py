"""The architectures: each module implements one value of `model.name`."""
