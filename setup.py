"""The packages of the wheel: those found below hessfig/, and the folders conf/ and data/ beside it."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["hessfig", "hessfig.*"]),
        "hessfig.conf",
        "hessfig.data",
    ]
)
