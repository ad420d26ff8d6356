"""Using a trained model: `load_model` in Python, and what `python -m pipeline predict` is made of."""
