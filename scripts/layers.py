"""Run import-linter over python/sglang alone, with one contract of our own: `only`.

The overlay's files have the parent package `sglang`, whose `__init__` is the host's: importing it
takes seconds and hides ours. Here `sglang` is an empty namespace over this checkout.
"""

import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output
from importlinter.cli import lint_imports_command


class Only(Contract):
    """`packages` import the standard library, themselves and `may_import`, nothing else."""

    packages = fields.ListField(subfield=fields.StringField())
    may_import = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        wrong = []
        for module in sorted(graph.modules):
            if not _inside(module, self.packages):
                continue
            for name in sorted(graph.find_modules_directly_imported_by(module)):
                if name.split(".")[0] in sys.stdlib_module_names:
                    continue
                if not _inside(name, [*self.packages, *self.may_import]):
                    wrong.append(f"{module} imports {name}")
        return ContractCheck(kept=not wrong, metadata={"wrong": wrong})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["wrong"]:
            output.print_error(line)


def _inside(module: str, packages: list[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def hide_host() -> None:
    spec = ModuleSpec("sglang", None, is_package=True)
    overlay = Path(__file__).resolve().parents[1] / "python" / "sglang"
    spec.submodule_search_locations = [str(overlay)]
    sys.modules["sglang"] = module_from_spec(spec)


if __name__ == "__main__":
    hide_host()
    sys.argv[0] = "lint-imports"
    lint_imports_command()
