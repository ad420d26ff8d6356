"""Where a result comes from: code, uncommitted changes, libraries and machine. Recorded with a run; decides no result."""
