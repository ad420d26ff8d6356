"""What each stage may read of `params.yaml`, section by section; free of torch."""
