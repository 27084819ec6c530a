"""Lists of test files: those that `make test-fast` leaves out, the longest, and those of the soak.

An entry is the path of a file, or of a folder with `/` at its end.
"""

from collections.abc import Iterable
from typing import Final

# They need bubblewrap, Docker, Chromium or npm packages.
NEEDS_SYSTEM: Final = (
    "tests/architecture/test_one_text.py",
    "tests/architecture/test_every_way_in.py",
    "tests/sandbox/",
    "tests/tools/engines/test_sandbox.py",
    "tests/browser/cdp/test_browser.py",
    "tests/tools/engines/test_remote_runner.py",
    "tests/browser/playwright/test_browser_death.py",
    "tests/cli/test_demo.py",
    "tests/cli/test_runner_command.py",
    "tests/cli/test_task_cli.py",
    "tests/e2e/console/",
    "tests/e2e/test_clean_commands.py",
    "tests/e2e/test_egress.py",
    "tests/e2e/test_kills.py",
    "tests/e2e/test_kills_of_forms.py",
    "tests/e2e/test_files_through_artifacts.py",
    "tests/e2e/test_no_secret_is_kept.py",
    "tests/e2e/test_pairing_with_curl.py",
    "tests/e2e/test_paths_in_the_policy.py",
    "tests/e2e/test_playwright_mcp.py",
    "tests/e2e/test_readme.py",
    "tests/e2e/test_runner_check.py",
    "tests/e2e/test_runner_docs.py",
    "tests/tools/test_egress.py",
    "tests/tools/engines/test_files_run.py",
    "tests/tools/engines/test_path_rules.py",
    "tests/tools/engines/builtin/test_tools_in_a_sandbox.py",
    "tests/tools/engines/test_transfers.py",
    "tests/hostile/",
    "tests/journal/postgres/",
    "tests/tools/upstream/test_npm_servers.py",
    "tests/tools/upstream/test_sandboxed.py",
    "tests/surfaces/gateway/test_installed.py",
    "tests/surfaces/mcp/test_checklist.py",
    "tests/surfaces/mcp/test_conformance_suite.py",
    "tests/surfaces/mcp/test_task_methods.py",
    "tests/surfaces/mcp/test_transports.py",
    "tests/surfaces/runner/test_runner_end_to_end.py",
    "tests/tasks/test_addresses_with_tokens.py",
    "tests/tasks/test_hostile_pages.py",
    "tests/tasks/test_real_login.py",
    "tests/tasks/test_task_agent.py",
    "tests/tasks/test_templates.py",
    "tests/tasks/test_trust.py",
    "tests/project/test_deploy.py",
    "tests/support/test_docker_engine.py",
)

# The longest, the first of them first; `pytest --file-times` tells which. None of them is fast.
LONG: Final = (
    "tests/tasks/test_hostile_pages.py",
    "tests/e2e/test_ingress_faults.py",
    "tests/sandbox/test_every_backend.py",
    "tests/surfaces/gateway/test_openapi.py",
    "tests/e2e/test_first_run.py",
    "tests/tasks/test_templates.py",
    "tests/e2e/console/test_all_day.py",
    "tests/browser/playwright/test_browser_death.py",
    "tests/e2e/console/test_story.py",
    "tests/e2e/console/test_operator.py",
    "tests/surfaces/mcp/test_conformance_suite.py",
    "tests/hostile/test_battery.py",
    "tests/e2e/test_bad_starts.py",
    "tests/e2e/console/test_left_open.py",
    "tests/e2e/console/test_chat.py",
    "tests/browser/cdp/test_browser.py",
    "tests/architecture/test_every_way_in.py",
    "tests/surfaces/mcp/test_transports.py",
    "tests/client/test_client_sessions.py",
    "tests/e2e/test_foreign_orchestrator.py",
    "tests/e2e/test_readme.py",
    "tests/surfaces/gateway/test_idempotency.py",
    "tests/tools/upstream/test_servers.py",
    "tests/tools/upstream/test_sessions.py",
    "tests/e2e/test_kills.py",
    "tests/cli/test_every_command.py",
    "tests/e2e/test_arguments_of_a_device.py",
    "tests/homes/test_0_1_0.py",
    "tests/journal/sqlite/test_upgrade.py",
    "tests/secrets/test_no_secret_on_disk.py",
    "tests/secrets/test_recall.py",
    "tests/e2e/test_tool_updates.py",
)

# Files that are part of the soak without a mark.
SOAK: Final[dict[str, tuple[str, ...]]] = {
    "faults": (
        "tests/evidence/test_recovery.py",
        "tests/journal/sqlite/test_failing_disk.py",
        "tests/journal/sqlite/test_full_disk.py",
        "tests/browser/playwright/test_browser_death.py",
        "tests/e2e/test_bad_starts.py",
        "tests/e2e/test_full_disk.py",
        "tests/e2e/test_ingress_faults.py",
        "tests/e2e/test_restores.py",
    ),
    "hostile": (
        "tests/web/test_guard.py",
        "tests/hostile/",
        "tests/e2e/test_named_tokens.py",
        "tests/secrets/test_no_secret_on_disk.py",
        "tests/surfaces/gateway/test_hostile.py",
        "tests/tasks/test_hostile_pages.py",
    ),
}


def is_fast(path: str) -> bool:
    """True if a file or folder has no entry in NEEDS_SYSTEM or LONG."""
    return not _covered(path, (*NEEDS_SYSTEM, *LONG))


def order(path: str) -> int:
    """Sort key of a file: its place in LONG, or behind all of them."""
    return next((at for at, entry in enumerate(LONG) if _covered(path, [entry])), len(LONG))


def soak_part(path: str) -> str | None:
    return next((part for part, entries in SOAK.items() if _covered(path, entries)), None)


def _covered(path: str, entries: Iterable[str]) -> bool:
    return any(
        path == entry or (entry.endswith("/") and f"{path}/".startswith(entry)) for entry in entries
    )
