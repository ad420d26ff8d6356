"""Images of one size."""
