"""Where a result comes from: code, uncommitted changes, libraries and machine. These facts are recorded with a run and do not influence its result."""
