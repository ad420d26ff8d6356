"""The stage train: the loop in `engine`, augmentation, tasks, and several processes in `group`."""
