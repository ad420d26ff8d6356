"""A reproducible training pipeline: prepare, train, evaluate."""
