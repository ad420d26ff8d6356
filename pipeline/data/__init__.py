"""The prepared data: its format on disk, and how batches are made from it."""
