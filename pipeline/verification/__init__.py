"""Checks that a model file matches its own metadata, this checkout and machine, and the journal of its run."""
