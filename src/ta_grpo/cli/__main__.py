"""``python -m ta_grpo.cli``: the same as ``ta-grpo``."""

import sys

from . import main

sys.exit(main())
