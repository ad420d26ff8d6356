"""Makes batches on the device from the prepared data."""
