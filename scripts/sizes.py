"""Print the largest files and functions; fail on a file over 500 lines or a function over 100.

The rule of thumb is 300 and 50: what passes it is printed, with its size, for a reader to judge.
"""

import ast
import sys
from pathlib import Path

ROOTS = ("python", "sgl-kernel", "scripts", "test", "benchmark")
FILE, FUNCTION = 300, 50
FILE_LIMIT, FUNCTION_LIMIT = 500, 100


def functions(tree: ast.AST) -> list[tuple[str, int]]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    return [(f"{node.name}:{node.lineno}", node.end_lineno - node.lineno + 1) for node in found]


def main() -> int:
    files, defs = [], []
    for root in ROOTS:
        for path in sorted(Path(root).rglob("*")):
            if path.suffix not in {".py", ".cpp", ".h"} or "build" in path.parts:
                continue
            text = path.read_text()
            files.append((len(text.splitlines()), str(path)))
            if path.suffix == ".py":
                defs += [(size, f"{path}:{name}") for name, size in functions(ast.parse(text))]
    for kind, rows, usual in (("files", files, FILE), ("functions", defs, FUNCTION)):
        rows.sort(reverse=True)
        large = [row for row in rows if row[0] > usual]
        median = rows[len(rows) // 2][0]
        print(
            f"{len(rows)} {kind}, {sum(size for size, _ in rows)} lines, median {median}, "
            f"{len(large)} over {usual}"
        )
        for size, name in large or rows[:1]:
            print(f"  {size:5} {name}")
    return int(files[0][0] > FILE_LIMIT or defs[0][0] > FUNCTION_LIMIT)


if __name__ == "__main__":
    sys.exit(main())
