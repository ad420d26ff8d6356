"""How foreign files become samples: folders, archives, images, arrays, downloads."""
