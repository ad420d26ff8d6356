"""Inputs that attack: each has a name, how it is made, which verbs meet it, and what they must say."""

from tests.faults.corpus import models, parameters, prepared

CASES = {**parameters.CASES, **models.CASES, **prepared.CASES}
