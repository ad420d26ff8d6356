"""Files, untrusted input, tensor files, and how data is read."""
