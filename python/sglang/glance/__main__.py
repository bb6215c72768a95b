"""``python -m sglang.glance``: as the console script ``glance``, after SGLang's own import."""

import sys

from sglang_glance import main

if __name__ == "__main__":
    sys.exit(main())
