"""Reads untrusted datasets: folders, archives, images, arrays and downloads."""
