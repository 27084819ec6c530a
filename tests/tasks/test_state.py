"""The state machine and the arithmetic of browser task runs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgate.contracts import tasks_v1 as wire
from toolgate.core.enums import TaskCode, TaskMode, TaskStatus, TrustLevel
from toolgate.core.errors import Conflict
from toolgate.tasks import state as tasks
from toolgate.tasks.state import (
    NEXT_ACTIONS,
    TERMINAL,
    TRANSITIONS,
    Cancel,
    Fail,
    Finish,
    Interrupt,
    Requeued,
    Start,
    Started,
    Summary,
    TaskCommand,
    TaskError,
    TaskRun,
    cut_chunk,
    decide,
    reduce,
    starts_sync,
    status_of,
)

ERROR = TaskError(TaskCode.EXECUTION_ERROR, "it broke")


def a_run(status: TaskStatus = TaskStatus.QUEUED, **facts: object) -> TaskRun:
    failed = status in {TaskStatus.FAILED, TaskStatus.CANCELED}
    run = TaskRun(
        run_id="run_1",
        template_id="batch_extract_pages",
        template_version="1.0.0",
        session_id="sess_1",
        owns_session=True,
        trust=TrustLevel.LOCAL,
        mode=TaskMode.ASYNC,
        timeout_ms=1000,
        inputs={"urls": []},
        created_at=100,
        updated_at=100,
        status=status,
        error=ERROR if failed else None,
    )
    return replace(run, **facts)  # type: ignore[arg-type]


COMMANDS: list[tuple[TaskCommand, TaskStatus]] = [
    (Start(), TaskStatus.RUNNING),
    (Finish(TaskStatus.SUCCEEDED, "art_1", ("art_1",), 1), TaskStatus.SUCCEEDED),
    (Finish(TaskStatus.PARTIAL_SUCCESS, "art_1", ("art_1",), 1), TaskStatus.PARTIAL_SUCCESS),
    (Fail(ERROR), TaskStatus.FAILED),
    (Cancel(), TaskStatus.CANCELED),
    (Interrupt(repeatable=False), TaskStatus.FAILED),
]


@pytest.mark.requirement("004/status/values")
def test_the_states_are_those_of_the_contract() -> None:
    assert list(TaskStatus) == [
        "queued",
        "running",
        "succeeded",
        "failed",
        "partial_success",
        "canceled",
    ]


@pytest.mark.requirement("004/status/illegal-moves")
@pytest.mark.parametrize("status", list(TaskStatus))
@pytest.mark.parametrize(("command", "target"), COMMANDS)
def test_every_move_that_is_not_in_the_table_is_refused(
    status: TaskStatus, command: TaskCommand, target: TaskStatus
) -> None:
    run = a_run(status)
    if target in TRANSITIONS[status]:
        assert reduce(run, decide(run, command, now=200)).status is target
    else:
        with pytest.raises(Conflict):
            decide(run, command, now=200)


@pytest.mark.requirement("004/status/terminal-stays")
@pytest.mark.parametrize("status", sorted(TERMINAL))
@pytest.mark.parametrize("command", [command for command, _ in COMMANDS])
def test_a_run_that_has_ended_never_changes(status: TaskStatus, command: TaskCommand) -> None:
    with pytest.raises(Conflict):
        decide(a_run(status), command, now=200)


def test_a_failed_run_without_an_error_cannot_be_built() -> None:
    with pytest.raises(AssertionError):
        a_run(TaskStatus.FAILED, error=None)


@pytest.mark.parametrize(
    ("repeatable", "attempts", "requeued"),
    [(True, 1, True), (True, tasks.MAX_ATTEMPTS, False), (False, 1, False)],
)
def test_an_interrupted_run_is_run_again_only_where_that_is_safe_and_not_for_ever(
    repeatable: bool, attempts: int, requeued: bool
) -> None:
    run = a_run(TaskStatus.RUNNING, started_at=150, attempts=attempts)
    event = decide(run, Interrupt(repeatable=repeatable), now=200)
    assert isinstance(event, Requeued) == requeued
    if not requeued:
        after = reduce(run, event)
        assert after.error is not None
        assert after.error.details == {"interrupted": True, "outcome": "may_have_executed"}


def test_elapsed_time_counts_from_the_start_of_running_and_stops_at_the_end() -> None:
    run = a_run()
    assert run.elapsed_ms(500) == 0
    running = reduce(run, Started(200))
    assert running.elapsed_ms(500) == 300
    ended = reduce(running, decide(running, Cancel(), now=600))
    assert ended.elapsed_ms(9000) == 400


@pytest.mark.requirement("004/status/all-succeeded")
@pytest.mark.requirement("004/status/half-succeeded")
@pytest.mark.requirement("004/status/fewer-succeeded")
@pytest.mark.parametrize(
    ("succeeded", "total", "status"),
    [
        (4, 4, TaskStatus.SUCCEEDED),
        (3, 4, TaskStatus.PARTIAL_SUCCESS),
        (2, 4, TaskStatus.PARTIAL_SUCCESS),
        (1, 4, TaskStatus.FAILED),
        (0, 1, TaskStatus.FAILED),
        (1, 3, TaskStatus.FAILED),
    ],
)
def test_the_status_follows_from_how_many_items_succeeded(
    succeeded: int, total: int, status: TaskStatus
) -> None:
    assert status_of(Summary(total, succeeded)) is status


@pytest.mark.parametrize(
    ("template", "urls", "mode", "sync"),
    [
        ("batch_extract_pages", 10, TaskMode.AUTO, True),
        ("batch_extract_pages", 11, TaskMode.AUTO, False),
        ("multi_tab_compare", 11, TaskMode.AUTO, True),
        ("batch_extract_pages", 1000, TaskMode.SYNC, True),
        ("batch_extract_pages", 1, TaskMode.ASYNC, False),
    ],
)
def test_auto_waits_unless_a_batch_is_large(
    template: str, urls: int, mode: TaskMode, sync: bool
) -> None:
    assert starts_sync(template, url_count=urls, mode=mode) is sync


@given(st.text(min_size=1, max_size=60), st.integers(1, 9))
def test_chunks_of_text_are_cut_between_characters_and_give_the_text_again(
    text: str, limit: int
) -> None:
    content = text.encode("utf-8", "replace")
    pieces, offset = [], 0
    while True:
        cut = _cut(content, offset, limit, text=True)
        assert cut.offset == offset
        pieces.append(content[cut.offset : cut.offset + cut.length].decode())
        offset += cut.length
        if cut.complete:
            break
        assert 0 < cut.length <= max(limit, 4)
    assert "".join(pieces) == content.decode()


@given(st.text(min_size=1, max_size=60), st.integers(4, 9))
def test_a_reader_that_walks_in_strides_gets_every_character_too(text: str, limit: int) -> None:
    content = text.encode("utf-8", "replace")
    got = b""
    for offset in range(0, len(content), limit):
        cut = _cut(content, offset, limit, text=True)
        got += content[cut.offset : cut.offset + cut.length]
    assert got == content


@given(st.binary(max_size=60), st.integers(1, 9), st.integers(0, 80))
def test_chunks_of_bytes_are_cut_anywhere(content: bytes, limit: int, offset: int) -> None:
    cut = _cut(content, offset, limit, text=False)
    expected = content[offset : offset + limit]
    assert content[cut.offset : cut.offset + cut.length] == expected
    assert cut.complete == (offset + len(expected) >= len(content))


def _cut(content: bytes, offset: int, limit: int, *, text: bool) -> tasks.Cut:
    before = min(offset, 3) if text else 0
    window = content[offset - before : offset + limit + 4]
    return cut_chunk(
        window,
        window_at=offset - before,
        offset=offset,
        total=len(content),
        limit=limit,
        text=text,
    )


@pytest.mark.requirement("004/errors/every-code-has-hint")
def test_every_code_of_ours_is_a_code_of_the_contract_with_its_hint_and_next_actions() -> None:
    assert len(TaskCode) == 16
    assert set(NEXT_ACTIONS) == set(TaskCode)
    assert all(NEXT_ACTIONS.values())
    assert all(wire.ERROR_CODES[code].action for code in TaskCode)


def test_the_limits_here_are_those_of_the_contract() -> None:
    assert tasks.CHUNK_LIMIT == wire.MAX_CHUNK_BYTES
    assert tasks.RUN_TTL_MS == wire.RUN_TTL_MS
    assert tasks.ARTIFACT_TTL_MS == wire.ARTIFACT_TTL_MS
    assert tasks.AUTO_SYNC_URLS == wire.AUTO_SYNC_URLS
