import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "core"))  # verify_reference, tree_reference
