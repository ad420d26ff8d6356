"""What people run by hand: one file per verb."""
