"""The report of a trained model: one HTML page without scripts and without network, and the same as a model card in Markdown."""
