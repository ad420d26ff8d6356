"""Training and scoring, independent of datasets, DVC and MLflow."""
