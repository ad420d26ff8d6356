"""The container's first process: it finds a place to run in, starts what was asked for, and ends it in good order."""
