"""Inputs that attack: each has a name, how it is made, which verbs meet it, and what they must say."""

from tests.faults.corpus import archives, datasets, images, models, parameters, prepared

CASES = {**parameters.CASES, **models.CASES, **prepared.CASES, **archives.CASES, **images.CASES, **datasets.CASES}
