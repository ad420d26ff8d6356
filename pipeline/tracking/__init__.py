"""Experiment tracking: each run has a local journal, and a mirror process sends the journal's events to MLflow."""
