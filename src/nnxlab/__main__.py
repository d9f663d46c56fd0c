"""``python -m nnxlab`` is ``nnxlab``."""

import sys

from nnxlab.cli import main

sys.exit(main())
