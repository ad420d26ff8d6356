"""Experiment tracking: each run has a local file of events, its journal, and a separate process, the mirror, sends them to MLflow."""
