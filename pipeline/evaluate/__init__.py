"""The stage evaluate: scores of the model file on the test split, tables and figures."""
