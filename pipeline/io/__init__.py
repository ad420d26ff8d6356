"""Atomic file writes, untrusted input, tensor files, and the readers of datasets."""
