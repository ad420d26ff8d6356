"""Experiment tracking: a local journal of each run, and a mirror process that copies it to MLflow."""
