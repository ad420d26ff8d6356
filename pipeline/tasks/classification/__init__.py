"""Classification: one class per sample."""
