"""The container's entry point: finds or creates a checkout, runs the requested commands in it and forwards signals to them."""
