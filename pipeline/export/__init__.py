"""Writes a trained model as a program for other runtimes, and compares the program's outputs with those of the model."""
