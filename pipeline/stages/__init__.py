"""One thin table of contents per DVC stage."""
