"""The command line: ``ta-grpo VERB``, one file a verb.

Exit codes: 0 done; 1 it failed; 2 the request was wrong; 130 interrupted.
"""

from __future__ import annotations

import errno
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
from .output import safe

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


class _SafeFormatter(logging.Formatter):
    """Messages name questions and files."""

    def format(self, record: logging.LogRecord) -> str:
        return safe(super().format(record))


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns its exit code."""
    # Before any verb imports torch or a Hub client: idle threads do not spin, and nothing is reported home.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    # TRL still sets names that transformers has deprecated; its users can do nothing about it.
    warnings.filterwarnings("ignore", category=FutureWarning, message=r".*gradient_checkpointing.*deprecated")
    # Our own messages alone: other libraries have handlers of their own.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_SafeFormatter("%(levelname)s: %(message)s"))
    logging.getLogger("ta_grpo").addHandler(handler)
    try:
        code = app(
            sys.argv[1:] if argv is None else argv, exit_on_error=False, print_error=False, result_action="return_value"
        )
    except (UserError, CycloptsError) as error:
        print(safe(f"ta-grpo: {error}"), file=sys.stderr)  # noqa: T201
        return 2
    except OSError as error:
        told = _of_the_disk(error)
        if told is None:
            raise
        print(safe(f"ta-grpo: {told[0]}"), file=sys.stderr)  # noqa: T201
        return told[1]
    except KeyboardInterrupt:
        print("ta-grpo: interrupted", file=sys.stderr)  # noqa: T201
        return 130
    finally:
        logging.getLogger("ta_grpo").removeHandler(handler)
    return code if isinstance(code, int) else 0


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)


def _of_the_disk(error: OSError) -> tuple[str, int] | None:
    """What to say of an error that is no fault of ours, and the exit code; None: it may be one."""
    place = "" if error.filename is None else f"{error.filename}: "
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return f"{place}{reason}; make room, then run the command again, with --resume where the verb has it", 1
    if error.errno in _CLOSED:
        return f"{place}{reason}; choose another place (--output-dir), or mend the permissions of this one", 2
    return None
