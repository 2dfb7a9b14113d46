"""This module has names that scripts import that ask for MindSpore's version."""

from mspc.mindspore_api.alias import API_LEVEL

__version__ = API_LEVEL
