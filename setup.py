"""Packages are the folders with an `__init__.py`; everything else stands in setup.cfg."""

from setuptools import find_packages, setup

setup(script_name="setup.py", packages=["mspc", *(f"mspc.{folder}" for folder in find_packages())])
