"""Hyperparameter search: proposes parameters, trains with them in child processes, prunes poor trainings, and ranks the trials."""
