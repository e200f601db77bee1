"""`python -m holdfast.sim SEED`: run one seed or several, and print how each run ended."""

from __future__ import annotations

import argparse
import sys
from random import SystemRandom
from typing import Final

from holdfast.sim.run import run_seed
from holdfast.sim.world.trace import HEADING

# Fresh seeds stay below this limit, so that they are easy to type.
_FRESH: Final = 10_000_000


def main(arguments: list[str] | None = None) -> int:
    """Run the requested seeds; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.sim", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", help="the first seed (default: a random one)")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="number of consecutive seeds (default 1)")
    parser.add_argument("--steps", type=int, metavar="N", help="end every run after N steps")
    parser.add_argument("--trace", action="store_true", help="print every step")
    options = parser.parse_args(arguments)
    show = _print if options.trace else None
    failed = []
    if options.trace:
        _print(HEADING)
    first = options.seed if options.seed is not None else SystemRandom().randrange(_FRESH)
    for seed in range(first, first + options.seeds):
        verdict = run_seed(seed, steps_max=options.steps, show=show)
        _print(verdict.line())
        if verdict.violation is not None:
            failed.append(seed)
            if not options.trace:
                _print("\n".join(verdict.tail[-12:]))
            if verdict.detail is not None:
                _print(verdict.detail)
            _print(f"replay: python -m holdfast.sim {seed} --trace")
    if options.seeds > 1:
        _print(f"{options.seeds - len(failed)} of {options.seeds} seeds held; failed: {failed or 'none'}")
    return 1 if failed else 0


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
