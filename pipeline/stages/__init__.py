"""The DVC stages prepare, train and evaluate: one short module each, which calls the modules that do the work."""
