"""What a training prints while it runs. It receives numbers and returns nothing, so it decides no result."""
