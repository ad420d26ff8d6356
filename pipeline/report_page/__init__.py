"""The report of a trained model: `report.html`, one page without scripts and without network, and `model-card.md`."""
