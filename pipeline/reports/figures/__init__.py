"""Pictures as PNG: the same inputs give the same bytes. Imported late, because matplotlib is."""

import logging

# set before matplotlib loads: where its font cache lies, and that it is being built, is no news to who runs a stage
logging.getLogger("matplotlib").setLevel(logging.ERROR)
