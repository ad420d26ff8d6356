"""The typed sections of `params.yaml`, and which of them each stage may read. No module here imports torch."""
