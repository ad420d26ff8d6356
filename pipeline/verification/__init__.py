"""Whether a model is what its file and its run say of it."""
