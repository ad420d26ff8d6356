"""The machine and the job: environment variables, devices, signals, locks, the identity of a run and its workspace."""
