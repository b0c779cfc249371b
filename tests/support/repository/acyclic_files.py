"""An import contract: no file of the package imports itself by way of others, lazily or not."""

import networkx as nx
from grimp import ImportGraph, build_graph
from importlinter import Contract, ContractCheck, output


class AcyclicFiles(Contract):
    """Imports that only type checkers follow do not count."""

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Keeps every group of files that import each other."""
        package = self.session_options["root_packages"][0]
        imports = build_graph(package, exclude_type_checking_imports=True)
        files = nx.DiGraph((a, b) for a in imports.modules for b in imports.find_modules_directly_imported_by(a))
        cycles = [sorted(files_of) for files_of in nx.strongly_connected_components(files) if len(files_of) > 1]
        return ContractCheck(kept=not cycles, metadata={"cycles": cycles})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Names the files of each group."""
        for files in check.metadata["cycles"]:
            output.print_error("These files import each other: " + ", ".join(files))
