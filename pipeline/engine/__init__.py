"""Training and scoring: knows no dataset, no DVC and no MLflow."""
