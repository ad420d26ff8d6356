"""The losses: each module implements one value of `loss.name`."""
