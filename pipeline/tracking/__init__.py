"""What happened, for people: a local journal, and a mirror of it in MLflow."""
