"""Constraints at the lower end of every range that pyproject.toml states for users; development's are left out."""

import sys
import tomllib

from packaging.requirements import Requirement

project = tomllib.load(sys.stdin.buffer)["project"]
extras = project["optional-dependencies"]
for text in [*project["dependencies"], *(text for name in sys.argv[1:] for text in extras[name])]:
    requirement = Requirement(text)
    (lowest,) = (bound.version for bound in requirement.specifier if bound.operator == ">=")
    print(f"{requirement.name}=={lowest}")
