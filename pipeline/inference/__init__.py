"""Holds what training and evaluation share: batches, preprocessing, the model file, precision, the machine."""
