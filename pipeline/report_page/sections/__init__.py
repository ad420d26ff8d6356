"""The sections of a report. Each module has `section(evidence)`, which returns None where the section does not apply."""
