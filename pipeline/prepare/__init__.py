"""The stage prepare: reading folders, archives and tables, splitting, statistics, and writing arrays."""
