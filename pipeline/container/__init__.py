"""The container's entry point: it finds or creates a checkout, runs the requested commands there and forwards signals to them."""
