"""Augmentation of training images on the device."""
