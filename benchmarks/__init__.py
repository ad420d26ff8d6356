"""Compare the training loop with a bare loop and with other frameworks in one run; see README.md."""
