"""The prepared data: its format on disk, and the path from there to a batch."""
