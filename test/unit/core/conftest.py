"""Lets the tests import tree_reference and verify_reference."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
