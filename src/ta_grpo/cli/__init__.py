"""The command line: ``ta-grpo VERB``, one file a verb.

Exit codes: 0 done; 1 it failed; 2 the request was wrong; 130 interrupted.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from .. import __version__
from ..errors import UserError
from . import check, compare, demo, diagnose, env, export, plan, rephrase, report, train
from . import eval as evaluate

app = App(
    name="ta-grpo",
    help="Post-train language models with TA-GRPO and find out, honestly, whether it helped.",
    version=__version__,
    help_format="plaintext",
    suppress_keyboard_interrupt=False,  # main tells of it
)
app.command(demo.demo)
app.command(rephrase.rephrase)
app.command(check.check)
app.command(train.train)
app.command(evaluate.eval_, name="eval")
app.command(diagnose.diagnose)
app.command(compare.compare)
app.command(report.report)
app.command(plan.plan)
app.command(export.export)
app.command(env.env)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns its exit code."""
    # Before any verb imports torch or a Hub client: idle threads do not spin, and nothing is reported home.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    # TRL still sets names that transformers has deprecated; its users can do nothing about it.
    warnings.filterwarnings("ignore", category=FutureWarning, message=r".*gradient_checkpointing.*deprecated")
    # Our own messages alone: other libraries have handlers of their own.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    logging.getLogger("ta_grpo").addHandler(handler)
    try:
        code = app(
            sys.argv[1:] if argv is None else argv, exit_on_error=False, print_error=False, result_action="return_value"
        )
    except (UserError, CycloptsError) as error:
        print(f"ta-grpo: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        print("ta-grpo: interrupted", file=sys.stderr)  # noqa: T201
        return 130
    finally:
        logging.getLogger("ta_grpo").removeHandler(handler)
    return code if isinstance(code, int) else 0
