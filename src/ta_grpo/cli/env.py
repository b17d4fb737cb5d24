"""``ta-grpo env``: what is installed, against the tested versions, and what this machine can run."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from dataclasses import asdict, dataclass

from packaging.requirements import Requirement
from rich.table import Table

from .output import AsJson, print_json, print_pairs, print_table


@dataclass(frozen=True)
class Package:
    """One requirement of ours against what is installed."""

    name: str
    needed_for: str
    tested: str
    installed: str | None

    @property
    def state(self) -> str:
        """ok, not installed, or outside the tested range."""
        if self.installed is None:
            return "not installed"
        within = Requirement(f"{self.name}{self.tested}").specifier.contains(self.installed, prereleases=True)
        return "ok" if within else "outside the tested range"


def env(*, json: AsJson = False) -> None:
    """Show what is installed, against the tested versions, and what this machine can run."""
    packages = installed_packages()
    machine = _machine()
    if json:
        print_json({"machine": machine, "packages": [asdict(p) | {"state": p.state} for p in packages]})
        return
    print_pairs("Machine", machine.items())
    table = Table("package", "needed for", "tested", "installed", "", title="\nPackages", title_justify="left")
    for package in packages:
        style = None if package.state == "ok" else "dim" if package.installed is None else "yellow"
        table.add_row(
            package.name, package.needed_for, package.tested, package.installed or "-", package.state, style=style
        )
    print_table(table)


def installed_packages() -> list[Package]:
    """Every requirement that the package's metadata states, those of development left out."""
    seen: dict[str, Package] = {}
    for text in importlib.metadata.requires("ta-grpo") or []:
        requirement = Requirement(text)
        if requirement.name == "ta-grpo":
            continue
        extra = next(
            (
                e
                for e in ("train", "vllm", "verl", "endpoint", "report", "diversity", "trackers", "gguf")
                if _belongs(requirement, e)
            ),
            None,
        )
        if extra is None and requirement.marker is not None:
            continue
        try:
            installed = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            installed = None
        package = Package(requirement.name, extra or "everything", str(requirement.specifier), installed)
        seen.setdefault(package.name, package)
    return list(seen.values())


def _belongs(requirement: Requirement, extra: str) -> bool:
    if requirement.marker is None:
        return False
    return requirement.marker.evaluate({"extra": extra}) and not requirement.marker.evaluate({"extra": ""})


def _machine() -> dict[str, str]:
    machine = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "CPU cores": str(os.cpu_count()),
        "threads": os.environ.get("OMP_NUM_THREADS", "one for models below 20 M parameters, else torch's choice"),
    }
    if importlib.util.find_spec("torch") is None:
        return machine | {"training": "no torch; run: pip install 'ta-grpo[train]'"}
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        machine |= {"GPUs": ", ".join(names), "training": "on the GPU, bf16"}
    else:
        machine |= {"GPUs": "none", "training": "on the CPU, fp32: models of up to some hundred million parameters"}
    vllm = importlib.util.find_spec("vllm") is not None
    return machine | {"sampling": "vLLM or transformers" if vllm else "transformers (vLLM is not installed)"}
