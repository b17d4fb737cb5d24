"""Is the plug-in there: in this process, and on every node of the Ray cluster?"""
# pyright: reportMissingImports=false

from __future__ import annotations

import os
from importlib import metadata

from ..errors import UserError
from . import TRAINING_LOOP

PLUGIN_GROUP = "verl.plugins"
PLUGIN_NAME = "ta_grpo"


def installed() -> dict[str, str]:
    """The versions that must be the same on all nodes, and what is wrong with the plug-in in this process, if anything.

    verl hides a plug-in that fails to load: it logs at DEBUG and goes on.
    """
    versions = {name: _version(name) for name in ("ta-grpo", "verl", "transformers", "torch")}
    return versions | {"problem": plugin_problem()}


def plugin_problem() -> str:
    """Why verl cannot find our agent loop in this process; "" if it can."""
    try:
        import verl  # noqa: F401 - loads the plug-ins
        from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
    except ImportError as error:
        return f"verl's agent loop cannot be imported ({error}); run: pip install 'ta-grpo[verl]'"

    if TRAINING_LOOP in _agent_loop_registry:
        return ""
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto")
    found = metadata.entry_points(group=PLUGIN_GROUP, name=PLUGIN_NAME)
    if not found:
        return f"ta-grpo is not installed as verl's plug-in (no entry point {PLUGIN_GROUP}:{PLUGIN_NAME}); reinstall it"
    if policy != "auto" and PLUGIN_NAME not in policy.split(","):
        return f"VERL_USE_EXTERNAL_PLUGINS={policy} keeps the plug-in from loading; unset it, or add {PLUGIN_NAME}"
    try:
        next(iter(found)).load()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        return f"the plug-in fails to load: {type(error).__name__}: {error}"
    return "" if TRAINING_LOOP in _agent_loop_registry else "the plug-in loads, but registers no agent loop"


def check_nodes() -> None:
    """Ask every node of the cluster that this process is connected to.

    Raises:
        UserError: naming each node without a working plug-in, or with other versions than here.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = installed()
    ask = ray.remote(num_cpus=0)(installed)
    problems = []
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        host = node.get("NodeManagerHostname", node["NodeID"])
        place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        try:
            there = ray.get(ask.options(scheduling_strategy=place).remote())
        except ray.exceptions.RayError as error:  # such as no ta_grpo to import
            there = {"problem": str(error).strip().splitlines()[-1]}
        problems += [f"{host}: {problem}" for problem in _differences(here, there)]
    if problems:
        raise UserError(
            "the nodes of the Ray cluster need the same packages, ta-grpo among them:\n"
            + "\n".join(f"- {problem}" for problem in problems)
        )


def _differences(here: dict[str, str], there: dict[str, str]) -> list[str]:
    if there["problem"]:
        return [there["problem"]]
    return [f"{name} {there[name]}, here {version}" for name, version in here.items() if there[name] != version]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
