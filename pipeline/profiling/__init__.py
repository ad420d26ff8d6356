"""Measures a training on this machine: where its steps spend their time, which options make them faster, and which micro-batch fits."""
