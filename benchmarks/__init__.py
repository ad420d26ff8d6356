"""The training loop beside the bare one and beside its peers', in one run: README.md says how."""
