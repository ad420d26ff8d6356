"""The commands beside the stages. Nothing here decides a result."""
