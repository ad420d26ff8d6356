"""What happens to a training image before the network sees it."""
