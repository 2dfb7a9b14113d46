"""Names with MindSpore's version, for scripts that import them."""

from mspc.mindspore_api.alias import API_LEVEL

__version__ = API_LEVEL
