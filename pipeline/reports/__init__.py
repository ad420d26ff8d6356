"""Figures and tables made from predictions."""
