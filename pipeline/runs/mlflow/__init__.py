"""MLflow as a projection of the runs: the run of a store is made from the journal alone."""
