"""Scores, tables and figures computed from predictions."""
