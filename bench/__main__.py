"""Run every benchmark, or those that are named: `python -m bench [journal ...]`.

A benchmark is a module of this package with a `main()` that returns its table, line by line.
"""

import importlib
import pkgutil
import sys
from pathlib import Path


def main(names: list[str]) -> int:
    known = sorted(
        module.name
        for module in pkgutil.iter_modules([str(Path(__file__).parent)])
        if not module.name.startswith("_")
    )
    unknown = set(names) - set(known)
    if unknown:
        print(f"no benchmark {', '.join(sorted(unknown))}; there are: {', '.join(known)}")
        return 2
    failed = False
    for name in names or known:
        measure = getattr(importlib.import_module(f"bench.{name}"), "main", None)
        if measure is not None:
            for line in measure():
                print(line, flush=True)
                failed |= line.endswith("FAIL")
            print()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
