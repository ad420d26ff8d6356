"""Figures as PNG files: equal inputs give equal bytes. Import this package late: it imports matplotlib."""

import logging

# Set before matplotlib is imported, to hide its messages about building the font cache.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
