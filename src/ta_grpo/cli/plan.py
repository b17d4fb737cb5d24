"""``ta-grpo plan``: what a run will take, and what does not fit, before anything starts."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

from ..errors import UserError
from ..plan.settings import PlanSettings
from .flags import ConfigFile, flags_of, resolve
from .output import AsJson, print_json, print_pairs, print_table, print_text

if TYPE_CHECKING:
    from ..plan import Layout, Plan

_GIB = 1024**3


def plan(
    flags: flags_of(PlanSettings) = None,  # pyright: ignore[reportInvalidTypeForm]
    *,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Estimate responses, tokens, memory, hours and cost of a run; exit 2 if it fits in no layout.

    Hours need --sampling-throughput and --update-throughput, as measured on your machine or published for one like it.
    """
    settings = resolve(PlanSettings, flags, config)
    from ..plan import plan as make_plan

    made = make_plan(settings)
    if json:
        print_json(_record(made))
    else:
        _show(made, settings)
    if not any(layout.fits for layout in made.layouts):
        problems = [f"{layout.name}: {problem}" for layout in made.layouts for problem in layout.problems]
        if problems:
            raise UserError("does not fit. " + "; ".join(problems))


def _record(made: Plan) -> dict[str, Any]:
    from ..plan import IGNORED

    return {
        "model": asdict(made.size),
        "work": asdict(made.work),
        "layouts": [
            {
                **{name: value for name, value in asdict(layout).items() if name != "moments"},
                "fits": layout.fits,
                "moments": [asdict(moment) | {"total": moment.total} for moment in layout.moments],
                "phases": [asdict(phase) for phase in phases],
            }
            for layout, phases in zip(made.layouts, made.phases, strict=True)
        ],
        "units": "bytes of one GPU",
        "estimates": True,
        "ignored": IGNORED,
    }


def _show(made: Plan, settings: PlanSettings) -> None:
    from ..plan import IGNORED

    size, work = made.size, made.work
    at_most = "at most " if work.lengths_are_upper_bounds else ""
    print_pairs(
        "Work",
        [
            ("model", f"{size.parameters / 1e9:.3f} billion parameters, {size.layers} layers"),
            ("questions", f"{work.questions:,}, {work.rephrasings_to_make:,} rephrasings to make"),
            (
                "responses",
                f"{work.responses:,} = {work.generation_batches:,} generation batches x {settings.questions_per_step} "
                f"questions x {work.phrasings} phrasings x {work.completions_per_phrasing}",
            ),
            ("completion tokens", f"{at_most}{work.completion_tokens:,}"),
            ("tokens scored", f"{at_most}{work.tokens_scored:,}" if work.tokens_scored else "none"),
            ("tokens trained on", f"{at_most}{work.tokens_trained:,}"),
        ],
    )
    print_table(_memory_table(made.layouts, settings))
    for layout in made.layouts:
        for problem in layout.problems:
            print_text(f"{layout.name} does not fit: {problem}")
    if any(phase.hours is not None for phases in made.phases for phase in phases):
        print_table(_time_table(made, settings))
    else:
        print_text("Hours: give --sampling-throughput and --update-throughput.")
    print_text("\nThese are estimates. They leave out:")
    for ignored in IGNORED:
        print_text(f"- {ignored}")


def _memory_table(layouts: list[Layout], settings: PlanSettings) -> Table:
    """A column for each layout and phase, a row for each part."""
    title = f"\nMemory of a GPU in GiB, of {settings.gpu_memory:g} (estimates)"
    caption = "rows at once: longest completions that the sampler holds at a time, over all GPUs"
    table = Table(title=title, title_justify="left", caption=caption)
    table.add_column("")
    moments = [(layout, moment) for layout in layouts for moment in layout.moments]
    for layout, moment in moments:
        table.add_column(f"{layout.name}\n{layout.sharding}\n{moment.phase}", justify="right")
    parts = dict.fromkeys(part for _, moment in reversed(moments) for part in moment.parts)
    for part in parts:
        table.add_row(part, *(_gib(moment.parts.get(part, 0)) for _, moment in moments))
    table.add_section()
    table.add_row("total", *(_gib(moment.total) for _, moment in moments))
    table.add_row("fits", *("yes" if moment.total <= settings.gpu_memory * _GIB else "NO" for _, moment in moments))
    table.add_row("GPUs", *(str(layout.gpus_in(moment.phase)) for layout, moment in moments))
    rows = [f"{layout.rows_at_once:,}" if moment.phase == "sampling" else "" for layout, moment in moments]
    table.add_row("rows at once", *rows)
    return table


def _time_table(made: Plan, settings: PlanSettings) -> Table:
    table = Table(title="\nHours, from the throughputs stated (estimates)", title_justify="left")
    table.add_column("layout")
    table.add_column("phase")
    for name in ("tokens", "tokens/s a GPU", "GPUs", "hours", "GPU hours", "cost"):
        table.add_column(name, justify="right")
    for layout, phases in zip(made.layouts, made.phases, strict=True):
        for i, phase in enumerate(phases):
            speed = "" if phase.tokens_a_second is None else f"{phase.tokens_a_second:,.0f}"
            table.add_row(
                layout.name if i == 0 else "",
                phase.name,
                f"{phase.tokens:,}",
                f"{speed} (derived)" if phase.derived else speed,
                str(phase.gpus),
                "" if phase.hours is None else f"{phase.hours:,.1f}",
                "" if phase.hours is None else f"{phase.hours * settings.gpus:,.1f}",
                "" if phase.cost is None else f"{phase.cost:,.2f}",
            )
        hours, cost = [p.hours for p in phases], [p.cost for p in phases]
        if None not in hours:
            total = sum(hour for hour in hours if hour is not None)
            paid = "" if None in cost else f"{sum(each for each in cost if each is not None):,.2f}"
            table.add_row("", "all", "", "", "", f"{total:,.1f}", f"{total * settings.gpus:,.1f}", paid)
    return table


def _gib(amount: float) -> str:
    return f"{amount / _GIB:.1f}" if amount else "-"
