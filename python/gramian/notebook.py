"""Progress where the engine's own line does not show: in notebooks, by tqdm where it is installed."""
from __future__ import annotations

from collections.abc import Callable


def in_notebook() -> bool:
    try:
        return type(get_ipython()).__name__ == "ZMQInteractiveShell"  # type: ignore[name-defined]
    except NameError:
        return False


def layer_progress(wanted: bool | None, quiet: bool) -> Callable[[int, int], None] | None:
    """(layers done, of all) -> None; wanted: None in notebooks only, True always where tqdm is installed, False never."""
    if wanted is False or quiet or (wanted is None and not in_notebook()):
        return None
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    bars: list = []

    def show(done: int, total: int) -> None:
        if not bars:
            bars.append(tqdm(total=total, desc="quantize", unit="layer"))
        bars[0].update(done - bars[0].n)
        if done == total:
            bars[0].close()

    return show
