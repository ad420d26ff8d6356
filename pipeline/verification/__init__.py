"""Checks that a model matches the metadata in its file and the record of its run."""
