"""Map the folders of this checkout to the package ``viva``: ``engine/`` is ``viva.engine``.

Each top-level folder with an ``__init__.py`` belongs to the package; everything else is in pyproject.toml.
"""

from pathlib import Path

from setuptools import find_packages, setup

folders = sorted(init.parent.name for init in Path(__file__).parent.glob("*/__init__.py"))
places = {"viva" if name == "viva" else f"viva.{name}": name for name in folders}

setup(
    package_dir=places,
    packages=[*places, *(f"{package}.{name}" for package, place in places.items() for name in find_packages(place))],
)
