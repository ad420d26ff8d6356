"""Checks the machine, the checkout and the servers that a training needs, and names a command that fixes each problem."""
