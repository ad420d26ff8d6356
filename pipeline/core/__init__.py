"""Holds what every stage needs: reading params.yaml, the description of the data, files, environment, signals, identity, running a stage."""
