"""Examines what a training needs of the machine, the checkout and the servers, and names the command that mends what is wrong."""
