"""What belongs to the machine and the job: environment, devices, signals, locks, the identity of a run and its workspace."""
