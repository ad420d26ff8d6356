"""Checks that a model file matches its own metadata, this checkout and machine, and the journal, the local record, of its run."""
