"""Prints the progress of a training. The code here receives numbers and returns nothing, so it cannot change a result."""
