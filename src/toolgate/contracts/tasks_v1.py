"""Seed 004, "MCP 契约 v1": the seven tools of the browser task runtime, their runs and artifacts.

Only data, camelCase, times in Unix ms. What the tools do is in `tasks/`; how they are offered over
MCP is in `surfaces/mcp/`.
"""

from enum import StrEnum
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from toolgate.contracts.wire import CamelWire, Code, Count, Id, Json, Text, UnixMs
from toolgate.core.enums import LocatorMode, TaskCode, TaskMode, TaskStatus, TrustLevel

MAX_TIMEOUT_MS: Final = 600_000
SYNC_TIMEOUT_MS: Final = 300_000
ASYNC_TIMEOUT_MS: Final = 600_000
AUTO_WAIT_MS: Final = 20_000
AUTO_SYNC_URLS: Final = 10
RUN_TTL_MS: Final = 1_800_000
ARTIFACT_TTL_MS: Final = 86_400_000
MAX_CHUNK_BYTES: Final = 262_144
MAX_CONCURRENT_RUNS: Final = 5
MAX_URLS: Final = 1000
MAX_TABS_PER_SESSION: Final = 20
DEFAULT_LIST_LIMIT: Final = 50
MAX_LIST_LIMIT: Final = 1000
TEMPLATE_VERSION: Final = "1.0.0"

LIMITS: Final = {
    "MAX_TIMEOUT_MS": "seed 004 §4.1: timeoutMs",
    "SYNC_TIMEOUT_MS": "seed 004 §4.5: the time of a sync run, from its start; more is cut to it",
    "ASYNC_TIMEOUT_MS": "seed 004 §4.5: the time of an async or auto run without timeoutMs",
    "AUTO_WAIT_MS": "browser spec: an auto run that takes longer is answered as async",
    "AUTO_SYNC_URLS": "browser spec: a batch of more URLs starts async in mode auto",
    "RUN_TTL_MS": "seed 004 §4.1.1: how long a run, and its idempotencyKey, is kept after its end",
    "ARTIFACT_TTL_MS": "seed 004 §4.5: how long an artifact is kept after its run's end",
    "MAX_CHUNK_BYTES": "seed 004 §4.5: artifactMaxChunkSize",
    "MAX_CONCURRENT_RUNS": "seed 004 §4.5: more runs are queued",
    "MAX_URLS": "seed 004 §4.5: URLs in one batch",
    "MAX_TABS_PER_SESSION": "seed 004 §4.5",
    "DEFAULT_LIST_LIMIT": "seed 004 §4.3, its example",
    "MAX_LIST_LIMIT": "seed 004 §4.3",
}


OPEN: Final = frozenset({TaskStatus.QUEUED, TaskStatus.RUNNING})
WITH_RESULT: Final = frozenset({TaskStatus.SUCCEEDED, TaskStatus.PARTIAL_SUCCESS})
WITH_ERROR: Final = frozenset({TaskStatus.FAILED, TaskStatus.CANCELED})


# `action` is the recoverHint.
ERROR_CODES: Final = {
    TaskCode.ELEMENT_NOT_FOUND: Code(
        "The page has no such element",
        "Read the page's meaning anew and try again; if need be, change the selector or the "
        "semantic query",
    ),
    TaskCode.NAVIGATION_TIMEOUT: Code(
        "The page did not load in time",
        "Wait for less, allow more time, or split the step",
    ),
    TaskCode.SESSION_NOT_FOUND: Code(
        "There is no such browser session", "Make a new session and run the task again"
    ),
    TaskCode.PAGE_CRASHED: Code(
        "The page's process died", "Open a new tab or session and go on from a step that is safe"
    ),
    TaskCode.INVALID_PARAMETER: Code(
        "A parameter is out of range or of the wrong type", "Correct the parameter's range or type"
    ),
    TaskCode.EXECUTION_ERROR: Code(
        "The task failed while it ran",
        "Check what the script or step needs beforehand; if need be, run a simpler form of it",
    ),
    TaskCode.TEMPLATE_NOT_FOUND: Code(
        "There is no such template", "Correct templateId, or update the client's list of templates"
    ),
    TaskCode.RUN_NOT_FOUND: Code(
        "There is no such run (any more)",
        "Check runId and how long runs are kept; if need be, submit it again",
    ),
    TaskCode.RUN_TIMEOUT: Code(
        "The run's time was over", "Raise timeoutMs, make the batch smaller, or split the task"
    ),
    TaskCode.RUN_CANCELED: Code(
        "The run was canceled", "This is the end that was asked for; submit it again if wanted"
    ),
    TaskCode.STEP_EXECUTION_FAILED: Code(
        "A step, or too many items, failed", "Repeat or repair only the step that failed"
    ),
    TaskCode.TRUST_LEVEL_NOT_ALLOWED: Code(
        "The connection's trust level does not allow this",
        "Change the trustLevel, or use a template that supports this one",
    ),
    TaskCode.TEMPLATE_VERSION_UNSUPPORTED: Code(
        "The template has no such version", "Use another template version, or upgrade the server"
    ),
    TaskCode.ARTIFACT_NOT_FOUND: Code(
        "There is no such artifact", "Check artifactId and which run it belongs to"
    ),
    TaskCode.ARTIFACT_EXPIRED: Code(
        "The artifact is no longer kept",
        "Read it within its time, or run the task again to make it anew",
    ),
    TaskCode.TPL_LOGIN_FIELD_NOT_FOUND: Code(
        "A field of the login form was not found",
        "Change the login fields' mapping or the rules that locate them by meaning",
    ),
}


class RunError(CamelWire):
    """The members after `details` are ours: what a caller can do next."""

    error_code: str
    message: str
    details: Json | UnsetType = UNSET
    recover_hint: str | UnsetType = UNSET
    failed_step: str | UnsetType = UNSET
    next_actions: list[str] | UnsetType = UNSET


class Progress(CamelWire):
    done_steps: Count
    total_steps: Count


class Metrics(CamelWire):
    elapsed_ms: Count


class Run(CamelWire):
    """§3.2: an open run has neither result nor error; one that went wrong always has its error."""

    run_id: str
    template_id: str
    session_id: str
    owns_session: bool
    status: TaskStatus
    progress: Progress
    metrics: Metrics
    result: Json
    error: RunError | None
    artifact_ids: list[str]
    created_at: UnixMs
    updated_at: UnixMs
    message: str | UnsetType = UNSET  # ours, while it waits for a person

    def __post_init__(self) -> None:
        if self.status in OPEN and (self.result is not None or self.error is not None):
            raise ValueError("a run that has not ended has neither `result` nor `error`")
        if self.status in WITH_ERROR and self.error is None:
            raise ValueError("a run that failed or was canceled has its `error`")


class FinishedRun(Run, kw_only=True):
    """The answer of run_task_template in mode sync; the last two say what went wrong, as `error`."""

    mode: TaskMode
    deduplicated: bool
    error_code: str | UnsetType = UNSET
    recover_hint: str | UnsetType = UNSET


class ArtifactInfo(CamelWire):
    artifact_id: str
    name: str
    mime_type: str
    size: Count


class RunWithArtifacts(Run, kw_only=True):
    """Ours: a run as the operator sees it; artifacts that are no longer kept are left out."""

    artifacts: list[ArtifactInfo]


class StartedRun(CamelWire):
    """The answer of run_task_template in mode async."""

    run_id: str
    session_id: str
    status: TaskStatus
    mode: TaskMode
    deduplicated: bool
    message: str | UnsetType = UNSET  # ours, while it waits for a person


class RunOptions(CamelWire):
    mode: TaskMode | UnsetType = UNSET
    timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=MAX_TIMEOUT_MS)] | UnsetType = UNSET
    idempotency_key: Id | UnsetType = UNSET
    output_schema: dict[str, Json] | UnsetType = UNSET


class RunTaskTemplate(CamelWire):
    template_id: str
    inputs: dict[str, Json] = msgspec.field(default_factory=dict)
    session_id: str | UnsetType = UNSET
    template_version: str | UnsetType = UNSET
    options: RunOptions | UnsetType = UNSET


class UncheckedRunTaskTemplate(CamelWire):
    """The same before its checks, which have an order: template, version, trust, time, mode,
    inputs, session. Each later member is converted when its turn comes.
    """

    template_id: str
    inputs: Json | UnsetType = UNSET
    session_id: Json | UnsetType = UNSET
    template_version: Json | UnsetType = UNSET
    options: Json | UnsetType = UNSET


class ListTaskTemplates(CamelWire):
    pass


class TemplateInfo(CamelWire):
    template_id: str
    version: str
    description: str
    trust_levels: list[TrustLevel]
    supported_modes: list[TaskMode]
    input_schema: dict[str, Json]
    output_schema: dict[str, Json] | UnsetType = UNSET


class TemplateList(CamelWire):
    templates: list[TemplateInfo]


class GetTaskRun(CamelWire):
    run_id: str


class ListTaskRuns(CamelWire):
    status: TaskStatus | UnsetType = UNSET
    template_id: str | UnsetType = UNSET
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_LIST_LIMIT)] = DEFAULT_LIST_LIMIT
    offset: Count = 0


class RunList(CamelWire):
    """Newest first; `total` counts what the filters let through, not the page."""

    runs: list[Run]
    total: Count
    limit: Count
    offset: Count
    has_more: bool


class CancelTaskRun(CamelWire):
    run_id: str


class CancelAnswer(CamelWire):
    success: bool
    run_id: str
    status: TaskStatus
    reason: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        if not self.success and isinstance(self.reason, UnsetType):
            raise ValueError("a run that could not be canceled has a `reason`")


class GetArtifact(CamelWire):
    artifact_id: str
    offset: Count = 0
    length: Count = MAX_CHUNK_BYTES


class ArtifactChunk(CamelWire):
    """`length` is that of this chunk, in bytes of the artifact; binary `data` is base64."""

    artifact_id: str
    mime_type: str
    total_size: Count
    offset: Count
    length: Count
    data: str
    complete: bool


class GetRuntimeProfile(CamelWire):
    pass


class RuntimeProfile(CamelWire):
    max_concurrent_runs: Count
    max_urls: Count
    max_tabs_per_session: Count
    sync_timeout_ms: Count
    async_timeout_ms: Count
    artifact_max_chunk_size: Count
    artifact_ttl_ms: Count
    run_ttl_ms: Count
    supported_modes: list[TaskMode]
    trust_level: TrustLevel
    is_remote: bool


class ErrorAnswer(CamelWire):
    """The content of an answer with `isError`."""

    error: str
    error_code: TaskCode
    recover_hint: str
    details: Json | UnsetType = UNSET


# Each tool with its input and the answers it may give.
TOOLS: Final[dict[str, tuple[type[CamelWire], tuple[type[CamelWire], ...]]]] = {
    "list_task_templates": (ListTaskTemplates, (TemplateList,)),
    "run_task_template": (RunTaskTemplate, (StartedRun, FinishedRun)),
    "get_task_run": (GetTaskRun, (Run,)),
    "list_task_runs": (ListTaskRuns, (RunList,)),
    "cancel_task_run": (CancelTaskRun, (CancelAnswer,)),
    "get_artifact": (GetArtifact, (ArtifactChunk,)),
    "get_runtime_profile": (GetRuntimeProfile, (RuntimeProfile,)),
}


class Locator(CamelWire):
    mode: LocatorMode
    selector: Text | UnsetType = UNSET
    query: Text | UnsetType = UNSET

    def __post_init__(self) -> None:
        by_selector = self.mode is LocatorMode.SELECTOR
        if isinstance(self.selector if by_selector else self.query, UnsetType):
            name = "selector" if by_selector else "query"
            raise ValueError(f"Object missing required field `{name}`")


class WaitType(StrEnum):
    SELECTOR = "selector"
    URL_CONTAINS = "urlContains"
    TEXT_INCLUDES = "textIncludes"
    STABLE = "stable"


class Wait(CamelWire):
    """`value` is what to wait for; `stable` needs none."""

    type: WaitType
    value: str | UnsetType = UNSET
    timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=120_000)] = 10_000

    def __post_init__(self) -> None:
        _require_value(self.type, self.value)


class SuccessIndicator(CamelWire):
    type: WaitType
    value: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        _require_value(self.type, self.value)


def _require_value(kind: WaitType, value: str | UnsetType) -> None:
    """Every page has an empty text: to wait for that would be a success that proves nothing."""
    if kind is not WaitType.STABLE and not (isinstance(value, str) and value):
        raise ValueError("Object missing required field `value`")


class Extract(CamelWire):
    """`full_text`: all of the main text; without it the first 50,000 characters."""

    page_info: bool = True
    content: bool = True
    main: bool = True
    full_text: bool = False
    max_elements: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 50
    max_content_length: Annotated[int, msgspec.Meta(ge=1, le=50_000)] = 4000


Concurrency = Annotated[int, msgspec.Meta(ge=1, le=5)]
DEFAULT_CONCURRENCY: Final = 3


class BatchExtractPages(CamelWire):
    urls: Annotated[list[str], msgspec.Meta(min_length=1, max_length=MAX_URLS)]
    extract: Extract = msgspec.field(default_factory=Extract)
    concurrency: Concurrency = DEFAULT_CONCURRENCY


class Credentials(CamelWire):
    """Never in a log, a run, an artifact, an event or an error; nor in a repr."""

    username: str
    password: str

    def __repr__(self) -> str:
        return "Credentials(...)"


class LoginFields(CamelWire):
    """Selectors or descriptions of the form's fields; without them the template looks for the fields."""

    mode: LocatorMode
    username: Text | UnsetType = UNSET
    password: Text | UnsetType = UNSET
    submit: Text | UnsetType = UNSET


class LoginKeepSession(CamelWire):
    start_url: str
    credentials: Credentials
    fields: LoginFields
    success_indicator: SuccessIndicator | UnsetType = UNSET


class CompareField(StrEnum):
    TITLE = "title"
    ELEMENT_COUNT = "elementCount"
    TOP_SECTIONS = "topSections"


class Compare(CamelWire):
    fields: list[CompareField] = msgspec.field(default_factory=lambda: list(CompareField))
    top_sections: Annotated[int, msgspec.Meta(ge=1)] = 3
    numeric_tolerance: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class MultiTabCompare(CamelWire):
    urls: Annotated[list[str], msgspec.Meta(min_length=1, max_length=10)]
    extract: Extract = msgspec.field(default_factory=Extract)
    compare: Compare = msgspec.field(default_factory=Compare)
    concurrency: Concurrency = DEFAULT_CONCURRENCY


class SearchExtract(CamelWire):
    start_url: str
    query: Text
    search_field: Locator
    submit: Locator | UnsetType = UNSET
    open_result: Locator | UnsetType = UNSET
    wait_for_results: Wait | UnsetType = UNSET
    extract: Extract = msgspec.field(default_factory=Extract)


class Pagination(CamelWire):
    next: Locator
    max_pages: Annotated[int, msgspec.Meta(ge=1, le=50)]
    wait_for: Wait | UnsetType = UNSET


class PaginatedExtract(CamelWire):
    start_url: str
    pagination: Pagination
    extract: Extract = msgspec.field(default_factory=Extract)


class FormField(CamelWire):
    name: str
    value: str
    locator: Locator


class SubmitAndVerify(CamelWire):
    start_url: str
    fields: list[FormField]
    submit: Locator | UnsetType = UNSET
    success_indicator: SuccessIndicator | UnsetType = UNSET
    extract: Extract = msgspec.field(default_factory=Extract)

    def __post_init__(self) -> None:
        """Without either there is nothing to press, and a success that sent nothing."""
        if not self.fields and isinstance(self.submit, UnsetType):
            raise ValueError("Object missing required field `submit`")


TEMPLATES: Final[dict[str, type[CamelWire]]] = {
    "batch_extract_pages": BatchExtractPages,
    "login_keep_session": LoginKeepSession,
    "multi_tab_compare": MultiTabCompare,
    "search_extract": SearchExtract,
    "paginated_extract": PaginatedExtract,
    "submit_and_verify": SubmitAndVerify,
}


class Summary(CamelWire):
    total: Count
    succeeded: Count
    failed: Count


class PageIdentity(CamelWire):
    url: str
    title: str
    type: str
    summary: str


class Element(CamelWire):
    id: str
    role: str
    label: str
    actions: list[str]
    state: dict[str, Json]
    bounds: dict[str, Json] | None


class PageInfo(CamelWire):
    page: PageIdentity
    elements: list[Element]
    total_elements: Count


class Section(CamelWire):
    tag: str
    text: str
    heading: str | UnsetType = UNSET


class Content(CamelWire):
    title: str
    sections: list[Section]
    links: list[dict[str, Json]]
    images: list[dict[str, Json]]
    metadata: dict[str, Json]
    truncated: bool = False
    total_length: Count = 0


class Link(CamelWire):
    text: str
    href: str


class MainText(CamelWire):
    """The article of a page, or the text of a PDF; `total_length` is that of all the text."""

    title: str
    byline: str
    published: str
    language: str
    text: str
    markdown: str
    tables: list[list[list[str]]]  # each as rows of cells
    links: list[Link]
    truncated: bool
    total_length: Count
    pages: list[str] | UnsetType = UNSET  # of a PDF
    page_count: Count | UnsetType = UNSET


class FrameText(CamelWire):
    """The text of a frame of the page; `read` is false for one of another site."""

    url: str
    text: str | UnsetType = UNSET
    read: bool | UnsetType = UNSET


class Redirect(CamelWire):
    url: str
    http_status: Count


class ItemError(CamelWire):
    error_code: str
    message: str
    recover_hint: str | UnsetType = UNSET


class PageItem(CamelWire):
    """One page of a batch, a comparison or a pagination; `degraded`: from its static HTML alone."""

    url: str
    success: bool
    title: str | UnsetType = UNSET
    page_type: str | UnsetType = UNSET
    element_count: Count | UnsetType = UNSET
    content: Content | UnsetType = UNSET
    page_info: PageInfo | UnsetType = UNSET
    error: ItemError | UnsetType = UNSET
    degraded: bool | UnsetType = UNSET
    degraded_by: str | UnsetType = UNSET
    final_url: str | UnsetType = UNSET
    http_status: Count | UnsetType = UNSET  # none where no server sent it, as for file:
    redirects: list[Redirect] | UnsetType = UNSET
    main: MainText | UnsetType = UNSET
    frames: list[FrameText] | UnsetType = UNSET
    artifact_id: str | UnsetType = UNSET  # of a PDF or another file
    mime_type: str | UnsetType = UNSET
    size: Count | UnsetType = UNSET


class BatchResult(CamelWire):
    summary: Summary
    items: list[PageItem]


class LoginResult(CamelWire):
    success: bool
    session_id: str
    final_url: str
    title: str
    login_state: str
    cookies_saved: bool


class Difference(CamelWire):
    field: CompareField
    values: dict[str, Json]  # by URL
    delta: float | UnsetType = UNSET
    changed_positions: list[Count] | UnsetType = UNSET


class CompareResult(CamelWire):
    summary: Summary
    snapshots: list[PageItem]
    diffs: list[Difference]


class PaginatedResult(CamelWire):
    summary: Summary
    pages: list[PageItem]
    stopped_reason: Literal["max_pages", "repeated_page", "next_unavailable"]


decode_run = msgspec.json.Decoder(Run).decode
