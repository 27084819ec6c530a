"""What a browser is started with, and how long its pages may take."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BrowserOptions:
    """Budgets in milliseconds. A hang is answered within soft + 2 stop + static, and what reading takes."""

    executable: str = ""  # empty: the first known one
    proxy_url: str = ""  # the guarded way out for trust `remote`; without it there is none
    slots: int = 8  # about 4 tabs per core
    tabs_per_session: int = 20  # seed 004 §4.5
    soft_ms: int = 5_000
    navigation_ms: int = 15_000
    quiet_ms: int = 2_000
    stop_ms: int = 500
    static_ms: int = 200  # how long HTML alone may load, before it is read as far as it came
    navigations_per_tab: int = 20  # a renderer grows by some 4 MB a page
    reads_per_tab: int = 100  # where it is told to collect: a new tab costs as much as two pages
    spares: int = 1
    memory_limit: int = 3 * 1024**3
    memory_check_s: float = 5.0
    download_limit: int = 20 * 1024**2
    extra_flags: tuple[str, ...] = ()
