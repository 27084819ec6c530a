"""What the browser task contract (seed 004) asks for. Only data."""

from typing import Final

from tests.conformance.requirement import Requirement

REQUIREMENTS: Final[tuple[Requirement, ...]] = (
    Requirement(
        id="004/artifacts/chunk-members",
        source="seed 004 §3.3",
        behaviour="A chunk has artifactId, mimeType, totalSize, offset, length, data and complete.",
    ),
    Requirement(
        id="004/artifacts/chunk-round-trip",
        source="seed 004 §3.3",
        behaviour="The seed's chunk parses into its model and comes back the same.",
    ),
    Requirement(
        id="004/artifacts/no-other-members",
        source="seed 004 §3.3",
        behaviour="A chunk has no encoding, nextOffset or truncated.",
    ),
    Requirement(
        id="004/artifacts/length-actual",
        source="seed 004 §3.3",
        behaviour="length is the length of this chunk.",
    ),
    Requirement(
        id="004/artifacts/complete-at-end",
        source="seed 004 §3.3",
        behaviour="complete is true exactly where the chunk reaches the end.",
    ),
    Requirement(
        id="004/artifacts/chunk-limit",
        source="spec browser.md, Artifacts",
        behaviour="A chunk is at most 262144 bytes.",
    ),
    Requirement(
        id="004/artifacts/byte-offsets",
        source="spec browser.md, Artifacts",
        behaviour="offset, length and totalSize count bytes.",
    ),
    Requirement(
        id="004/artifacts/text-between-characters",
        source="spec browser.md, Artifacts",
        behaviour="Text is cut only between characters.",
    ),
    Requirement(
        id="004/artifacts/binary-base64",
        source="spec browser.md, Artifacts",
        behaviour="Binary data is base64.",
    ),
    Requirement(
        id="004/artifacts/reassembled",
        source="spec browser.md, Artifacts",
        behaviour="The chunks read one after the other give the artifact byte for byte.",
    ),
    Requirement(
        id="004/artifacts/past-end",
        source="spec browser.md, Artifacts",
        behaviour="An offset at or past the end answers length 0 and complete.",
    ),
    Requirement(
        id="004/artifacts/negative-offset",
        source="spec browser.md, Artifacts",
        behaviour="A negative offset is INVALID_PARAMETER.",
    ),
    Requirement(
        id="004/artifacts/kinds",
        source="spec browser.md, Artifacts",
        behaviour="The result of each run, screenshots and downloads are artifacts.",
    ),
    Requirement(
        id="004/artifacts/kept-24h",
        source="spec browser.md, Artifacts",
        behaviour="An artifact is kept for 24 h from the end of its run.",
    ),
    Requirement(
        id="004/artifacts/expired-tombstone",
        source="spec browser.md, Artifacts",
        behaviour="An artifact past its time is ARTIFACT_EXPIRED and not ARTIFACT_NOT_FOUND.",
    ),
    Requirement(
        id="004/cancel/running-run",
        source="seed 004 §4.4",
        behaviour="Cancelling a running run makes it canceled with RUN_CANCELED.",
    ),
    Requirement(
        id="004/cancel/queued-run",
        source="spec browser.md, cancel",
        behaviour="Cancelling a queued run makes it canceled at once and it never starts.",
    ),
    Requirement(
        id="004/cancel/at-once",
        source="spec browser.md, cancel",
        behaviour="Cancelling answers at once and frees the slot.",
    ),
    Requirement(
        id="004/cancel/finished-run",
        source="seed 004 §4.4",
        behaviour="Cancelling a finished run answers success=false and a reason and is no error.",
    ),
    Requirement(
        id="004/cancel/unknown-run",
        source="seed 004 §4.4",
        behaviour="Cancelling an unknown run is RUN_NOT_FOUND.",
    ),
    Requirement(
        id="004/cancel/race",
        source="spec browser.md, cancel",
        behaviour="Of cancel, time-out and finish that race, one wins and the run has one end.",
    ),
    Requirement(
        id="004/cancel/spelling",
        source="spec README.md, cancelled is spelt",
        behaviour="The status is spelt canceled.",
    ),
    Requirement(
        id="004/checklist/three-modes",
        source="seed 004 §8",
        behaviour="run_task_template works in all three modes.",
    ),
    Requirement(
        id="004/checklist/run-fields",
        source="seed 004 §8",
        behaviour="get_task_run keeps the members' meaning before and after the end.",
    ),
    Requirement(
        id="004/checklist/list-total-and-order",
        source="seed 004 §8",
        behaviour="list_task_runs.total counts after filters, and runs come by createdAt, newest first.",
    ),
    Requirement(
        id="004/checklist/cancel-terminal",
        source="seed 004 §8",
        behaviour="cancel_task_run of an ended run answers success=false and a reason.",
    ),
    Requirement(
        id="004/checklist/idempotency",
        source="seed 004 §8",
        behaviour="A repeated idempotencyKey within the window answers the same run.",
    ),
    Requirement(
        id="004/checklist/artifact-chunks",
        source="seed 004 §8",
        behaviour="get_artifact's members and its behaviour at the borders are as contracted.",
    ),
    Requirement(
        id="004/checklist/profile-complete",
        source="seed 004 §8",
        behaviour="get_runtime_profile has all of its members.",
    ),
    Requirement(
        id="004/checklist/queued-then-done",
        source="seed 004 §8",
        behaviour="A task beyond the concurrency limit is answered queued and completes later.",
    ),
    Requirement(
        id="004/checklist/sixteen-codes",
        source="seed 004 §8",
        behaviour="Each of the 16 error codes is covered by a test.",
    ),
    Requirement(
        id="004/compatibility/fields-kept",
        source="seed 004 §6",
        behaviour="No member that existed before v1 is removed.",
    ),
    Requirement(
        id="004/compatibility/polling",
        source="seed 004 §6",
        behaviour="A client that only polls get_task_run sees a run to its end.",
    ),
    Requirement(
        id="004/errors/is-error",
        source="spec browser.md, Results",
        behaviour="A failure is answered with isError and an object of error, errorCode and recoverHint.",
    ),
    Requirement(
        id="004/errors/details-optional",
        source="spec browser.md, Results",
        behaviour="`details` is in an error only where there is something to say.",
    ),
    Requirement(
        id="004/errors/every-code-has-hint",
        source="spec browser.md, Results",
        behaviour="Each of the 16 codes has its recoverHint.",
    ),
    Requirement(
        id="004/errors/element-not-found",
        source="seed 004, ELEMENT_NOT_FOUND",
        behaviour="ELEMENT_NOT_FOUND is given where an element is not on the page.",
    ),
    Requirement(
        id="004/errors/navigation-timeout",
        source="seed 004, NAVIGATION_TIMEOUT",
        behaviour="NAVIGATION_TIMEOUT is given where a page does not load in time.",
    ),
    Requirement(
        id="004/errors/session-not-found",
        source="seed 004, SESSION_NOT_FOUND",
        behaviour="SESSION_NOT_FOUND is given for a sessionId that does not exist.",
    ),
    Requirement(
        id="004/errors/page-crashed",
        source="seed 004, PAGE_CRASHED",
        behaviour="PAGE_CRASHED is given where the page crashed.",
    ),
    Requirement(
        id="004/errors/invalid-parameter",
        source="seed 004, INVALID_PARAMETER",
        behaviour="INVALID_PARAMETER is given for a value out of range or of the wrong type.",
    ),
    Requirement(
        id="004/errors/execution-error",
        source="seed 004, EXECUTION_ERROR",
        behaviour="EXECUTION_ERROR is given where a step fails for a reason without a code of its own.",
    ),
    Requirement(
        id="004/errors/template-not-found",
        source="seed 004, TEMPLATE_NOT_FOUND",
        behaviour="TEMPLATE_NOT_FOUND is given for an unknown templateId.",
    ),
    Requirement(
        id="004/errors/run-not-found",
        source="seed 004, RUN_NOT_FOUND",
        behaviour="RUN_NOT_FOUND is given for an unknown or expired runId.",
    ),
    Requirement(
        id="004/errors/run-timeout",
        source="seed 004, RUN_TIMEOUT",
        behaviour="RUN_TIMEOUT is given where a run takes longer than its timeoutMs.",
    ),
    Requirement(
        id="004/errors/run-canceled",
        source="seed 004, RUN_CANCELED",
        behaviour="RUN_CANCELED is given for a run that was canceled.",
    ),
    Requirement(
        id="004/errors/step-execution-failed",
        source="seed 004, STEP_EXECUTION_FAILED",
        behaviour="STEP_EXECUTION_FAILED is given where too many items of a run failed.",
    ),
    Requirement(
        id="004/errors/trust-level-not-allowed",
        source="seed 004, TRUST_LEVEL_NOT_ALLOWED",
        behaviour="TRUST_LEVEL_NOT_ALLOWED is given for a template that the trust level may not run.",
    ),
    Requirement(
        id="004/errors/template-version-unsupported",
        source="seed 004, TEMPLATE_VERSION_UNSUPPORTED",
        behaviour="TEMPLATE_VERSION_UNSUPPORTED is given for an unknown templateVersion.",
    ),
    Requirement(
        id="004/errors/artifact-not-found",
        source="seed 004, ARTIFACT_NOT_FOUND",
        behaviour="ARTIFACT_NOT_FOUND is given for an unknown artifactId.",
    ),
    Requirement(
        id="004/errors/artifact-expired",
        source="seed 004, ARTIFACT_EXPIRED",
        behaviour="ARTIFACT_EXPIRED is given for an artifact past its time.",
    ),
    Requirement(
        id="004/errors/login-field-not-found",
        source="seed 004, TPL_LOGIN_FIELD_NOT_FOUND",
        behaviour="TPL_LOGIN_FIELD_NOT_FOUND is given where a login field is not on the page.",
    ),
    Requirement(
        id="004/errors/sync-exception",
        source="spec browser.md, An exception",
        behaviour="An exception of the executor in sync mode is isError with its code.",
        superseded_by="004/errors/sync-is-error",
    ),
    Requirement(
        id="004/errors/sync-is-error",
        source="spec browser.md, v2: A sync answer",
        behaviour="A sync answer is the ended run; it is isError exactly where the run failed or was canceled, with errorCode and recoverHint beside `error`.",
    ),
    Requirement(
        id="004/errors/sync-exception-queryable",
        source="spec browser.md, An exception",
        behaviour="A run that ended by an exception stays queryable as failed.",
    ),
    Requirement(
        id="004/errors/template-says-failed",
        source="spec browser.md, An exception",
        behaviour="A template whose result says success=false makes the run failed and is not isError.",
        superseded_by="004/errors/sync-is-error",
    ),
    Requirement(
        id="004/gate/shipped-policy",
        source="spec browser.md, Levels",
        behaviour="The shipped policy allows templates that read, asks about those that may send forms, and allows both to trust `local`.",
    ),
    Requirement(
        id="004/gate/no-forms",
        source="spec browser.md, Levels",
        behaviour="A template that reads sends no form and makes no navigation but by GET: the item fails, and what scripts request is untouched.",
    ),
    Requirement(
        id="004/gate/one-call",
        source="spec browser.md, Through the gate",
        behaviour="A submission is one call of the gate, `browser.<templateId>`, whose row is the run's.",
    ),
    Requirement(
        id="004/gate/denied",
        source="spec browser.md, Through the gate",
        behaviour="A denied submission leaves no run and is answered with TRUST_LEVEL_NOT_ALLOWED, the rule and the reason.",
    ),
    Requirement(
        id="004/gate/waiting",
        source="spec browser.md, Through the gate",
        behaviour="A run that waits for a person is `queued`, and its clock starts when it runs.",
    ),
    Requirement(
        id="004/gate/not-approved",
        source="spec browser.md, Through the gate",
        behaviour="A run that is rejected or not approved in time fails with TRUST_LEVEL_NOT_ALLOWED.",
    ),
    Requirement(
        id="004/gate/cancel",
        source="spec browser.md, Through the gate",
        behaviour="cancel_task_run cancels the call and is recorded with it.",
    ),
    Requirement(
        id="004/gate/reading-tools",
        source="spec browser.md, Through the gate",
        behaviour="The tools that only read are decided and recorded only when they are refused.",
    ),
    Requirement(
        id="004/gate/reading-limited",
        source="spec browser.md, Through the gate",
        behaviour="The tools that only read are rate-limited.",
    ),
    Requirement(
        id="004/gate/alone",
        source="spec browser.md, toolgate browser --stdio alone",
        behaviour="Alone, `toolgate browser` refuses what a policy asks about at once and names `toolgate up`.",
    ),
    Requirement(
        id="004/gate/own-runs",
        source="spec browser.md, Who asks sees own runs",
        behaviour="A caller sees its own runs over MCP; the operator sees all in the console.",
    ),
    Requirement(
        id="004/get/run-object",
        source="seed 004 §4.2",
        behaviour="get_task_run answers the run object of §3.2.",
    ),
    Requirement(
        id="004/get/unknown",
        source="seed 004 §5",
        behaviour="get_task_run of an unknown run is RUN_NOT_FOUND.",
    ),
    Requirement(
        id="004/get/same-as-sync",
        source="seed 004 §4.2",
        behaviour="A sync answer and get_task_run afterwards show the same run.",
    ),
    Requirement(
        id="004/idempotency/same-run",
        source="seed 004 §4.1.1",
        behaviour="The same templateId and idempotencyKey within the window answer the existing runId with deduplicated true.",
        divergence="The same caller's: a run is shown to its owner only, so a key is the caller's own.",
    ),
    Requirement(
        id="004/idempotency/new-run",
        source="seed 004 §4.1.1",
        behaviour="A key that is not in the window makes a new run with deduplicated false.",
    ),
    Requirement(
        id="004/idempotency/per-template",
        source="seed 004 §4.1.1",
        behaviour="The same key with another template makes another run.",
    ),
    Requirement(
        id="004/idempotency/any-status",
        source="spec browser.md, Idempotency",
        behaviour="A key is remembered whatever the status of its run.",
    ),
    Requirement(
        id="004/idempotency/window",
        source="seed 004 §4.1.1",
        behaviour="A key is remembered as long as its run is kept, 30 min after the end.",
    ),
    Requirement(
        id="004/idempotency/expired",
        source="spec browser.md, Idempotency",
        behaviour="An expired key makes a new run.",
    ),
    Requirement(
        id="004/idempotency/inputs-not-compared",
        source="spec browser.md, Idempotency",
        behaviour="The same key with other inputs answers the existing run.",
    ),
    Requirement(
        id="004/idempotency/atomic",
        source="spec browser.md, Idempotency",
        behaviour="Equal keys that arrive together make one run.",
    ),
    Requirement(
        id="004/idempotency/optional",
        source="seed 004 §4.1",
        behaviour="Calls without a key are never deduplicated.",
    ),
    Requirement(
        id="004/idempotency/run-ttl",
        source="spec browser.md, Idempotency",
        behaviour="A run is kept for 30 min after its end and is then RUN_NOT_FOUND.",
    ),
    Requirement(
        id="004/list/newest-first",
        source="seed 004 §4.3",
        behaviour="Runs are listed by createdAt, newest first.",
    ),
    Requirement(
        id="004/list/tie-break",
        source="spec browser.md, list",
        behaviour="Runs of the same millisecond are listed in a stable order.",
    ),
    Requirement(
        id="004/list/filter-status",
        source="seed 004 §4.3",
        behaviour="Runs can be filtered by status.",
    ),
    Requirement(
        id="004/list/filter-template",
        source="seed 004 §4.3",
        behaviour="Runs can be filtered by templateId.",
    ),
    Requirement(
        id="004/list/filter-status-invalid",
        source="seed 004 §4.3",
        behaviour="A status outside RunStatus is INVALID_PARAMETER.",
    ),
    Requirement(
        id="004/list/total",
        source="seed 004 §4.3",
        behaviour="total is the number after filters and not that of the page.",
    ),
    Requirement(
        id="004/list/limit-range",
        source="seed 004 §4.3",
        behaviour="limit is 1 to 1000, else INVALID_PARAMETER.",
    ),
    Requirement(
        id="004/list/offset-range",
        source="seed 004 §4.3",
        behaviour="offset is 0 or more, else INVALID_PARAMETER.",
    ),
    Requirement(
        id="004/list/has-more",
        source="spec browser.md, list",
        behaviour="hasMore says whether runs follow after the page.",
    ),
    Requirement(
        id="004/list/request-round-trip",
        source="seed 004 §4.3",
        behaviour="The seed's list_task_runs request parses into its model and comes back the same.",
    ),
    Requirement(
        id="004/pool/five-running",
        source="spec browser.md, Pool",
        behaviour="At most 5 runs are running at once and the rest are queued.",
    ),
    Requirement(
        id="004/pool/fifo",
        source="spec browser.md, Pool",
        behaviour="Queued runs start in the order in which they came.",
    ),
    Requirement(
        id="004/pool/queued-status",
        source="spec browser.md, Pool",
        behaviour="A run beyond the limit is answered as queued.",
    ),
    Requirement(
        id="004/pool/queued-completes",
        source="spec browser.md, Pool",
        behaviour="A queued run is executed to its end when a slot is free.",
    ),
    Requirement(
        id="004/profile/members",
        source="seed 004 §4.5",
        behaviour="get_runtime_profile answers the 11 members of the contract.",
    ),
    Requirement(
        id="004/profile/round-trip",
        source="seed 004 §4.5",
        behaviour="The seed's profile parses into its model and comes back the same.",
    ),
    Requirement(
        id="004/profile/really-in-force",
        source="spec browser.md, get_runtime_profile",
        behaviour="The profile's values are those really in force.",
    ),
    Requirement(
        id="004/profile/max-concurrent-runs",
        source="seed 004 §4.5",
        behaviour="maxConcurrentRuns is 5.",
    ),
    Requirement(
        id="004/profile/max-urls",
        source="seed 004 §4.5",
        behaviour="maxUrls is 1000.",
    ),
    Requirement(
        id="004/profile/max-tabs",
        source="seed 004 §4.5",
        behaviour="maxTabsPerSession is 20 and a session opens no more.",
    ),
    Requirement(
        id="004/profile/timeouts",
        source="seed 004 §4.5",
        behaviour="syncTimeoutMs is 300000 and asyncTimeoutMs 600000.",
    ),
    Requirement(
        id="004/profile/artifact-limits",
        source="seed 004 §4.5",
        behaviour="artifactMaxChunkSize is 262144 and artifactTtlMs 86400000.",
    ),
    Requirement(
        id="004/profile/run-ttl",
        source="seed 004 §4.5",
        behaviour="runTtlMs is 1800000.",
    ),
    Requirement(
        id="004/profile/supported-modes",
        source="seed 004 §4.5",
        behaviour="supportedModes are sync, async and auto.",
    ),
    Requirement(
        id="004/profile/trust-local",
        source="seed 004 §4.5",
        behaviour="Over stdio trustLevel is local and isRemote false.",
    ),
    Requirement(
        id="004/profile/trust-remote",
        source="seed 004 §4.5",
        behaviour="Over HTTP and SSE trustLevel is remote and isRemote true.",
    ),
    Requirement(
        id="004/run/template-first",
        source="spec browser.md, Validation order",
        behaviour="Checks are made in the order template, version, trust level, timeoutMs, mode, inputs, session.",
    ),
    Requirement(
        id="004/run/template-unknown",
        source="seed 004 §5",
        behaviour="An unknown template starts no run.",
    ),
    Requirement(
        id="004/run/template-version-optional",
        source="spec browser.md, templateVersion",
        behaviour="templateVersion may be left out.",
    ),
    Requirement(
        id="004/run/inputs-invalid",
        source="spec browser.md, Validation order",
        behaviour="Inputs that do not fit the template are INVALID_PARAMETER and start no run.",
    ),
    Requirement(
        id="004/run/session-unknown",
        source="spec browser.md, Validation order",
        behaviour="A sessionId that does not exist is SESSION_NOT_FOUND and starts no run.",
    ),
    Requirement(
        id="004/run/request-round-trip",
        source="seed 004 §4.1",
        behaviour="The seed's run_task_template request parses into its model and comes back the same.",
    ),
    Requirement(
        id="004/run/answers-round-trip",
        source="seed 004 §4.1",
        behaviour="The seed's two async answers parse into their model and come back the same.",
    ),
    Requirement(
        id="004/run/options-optional",
        source="seed 004 §6",
        behaviour="A call without options behaves as before v1 and the new options only add to it.",
    ),
    Requirement(
        id="004/run/timeout-range",
        source="seed 004 §4.1",
        behaviour="timeoutMs is an integer of 1 to 600000.",
    ),
    Requirement(
        id="004/run/timeout-refused",
        source="spec browser.md, Validation order",
        behaviour='A timeoutMs of 0, 600001, 1.5 or "x" is INVALID_PARAMETER.',
    ),
    Requirement(
        id="004/run/timeout-default",
        source="spec browser.md, Pool",
        behaviour="Without timeoutMs a run has 300000 ms.",
        superseded_by="004/run/timeout-in-force",
    ),
    Requirement(
        id="004/run/timeout-in-force",
        source="spec browser.md, v2: Without timeoutMs",
        behaviour="Without timeoutMs an async or auto run has asyncTimeoutMs and a sync run syncTimeoutMs; a sync run never has more.",
    ),
    Requirement(
        id="004/run/timeout-from-running",
        source="spec browser.md, Pool",
        behaviour="The time-out counts from the start of running and not of queueing.",
    ),
    Requirement(
        id="004/run/timeout-fails",
        source="spec browser.md, Pool",
        behaviour="A run that runs out of time is failed with RUN_TIMEOUT.",
    ),
    Requirement(
        id="004/run/timeout-frees-slot",
        source="spec browser.md, Pool",
        behaviour="A run that runs out of time frees its slot at once and its page is closed.",
    ),
    Requirement(
        id="004/run/mode-values",
        source="seed 004 §4.1",
        behaviour="mode is sync, async or auto, and any other is INVALID_PARAMETER.",
    ),
    Requirement(
        id="004/run/mode-sync",
        source="seed 004 §4.1",
        behaviour="Mode sync answers the ended run, with its result or its error.",
        divergence="A run that waits for a person is answered as async after MCP_HOLD_MS.",
    ),
    Requirement(
        id="004/run/mode-async",
        source="seed 004 §4.1",
        behaviour="Mode async answers runId with queued or running at once.",
    ),
    Requirement(
        id="004/run/mode-auto",
        source="seed 004 §4.1",
        behaviour="Mode auto answers the mode that was really taken as `mode`.",
    ),
    Requirement(
        id="004/run/auto-batch-small",
        source="spec browser.md, auto",
        behaviour="In mode auto batch_extract_pages with up to 10 URLs starts sync.",
    ),
    Requirement(
        id="004/run/auto-batch-large",
        source="spec browser.md, auto",
        behaviour="In mode auto batch_extract_pages with more than 10 URLs is async.",
    ),
    Requirement(
        id="004/run/auto-others",
        source="spec browser.md, auto",
        behaviour="In mode auto the other templates start sync.",
    ),
    Requirement(
        id="004/run/auto-long",
        source="spec browser.md, auto",
        behaviour="An auto run that is not done in 20 s is answered as async and goes on.",
    ),
    Requirement(
        id="004/run/async-shape",
        source="seed 004 §4.1",
        behaviour="An async answer has runId, sessionId, status, mode and deduplicated.",
    ),
    Requirement(
        id="004/run/deduplicated-always",
        source="spec browser.md, auto",
        behaviour="Every answer of run_task_template has deduplicated.",
    ),
    Requirement(
        id="004/run/output-schema-ignored",
        source="seed 004 §4.1",
        behaviour="A direct template run ignores outputSchema.",
    ),
    Requirement(
        id="004/run/output-schema-agent",
        source="spec browser.md, outputSchema",
        behaviour="The TaskAgent path checks its result against outputSchema and repairs it or fails with an explanation.",
    ),
    Requirement(
        id="004/run-object/round-trip",
        source="seed 004 §3.2",
        behaviour="The seed's run object parses into its model and comes back the same.",
    ),
    Requirement(
        id="004/run-object/members",
        source="seed 004 §3.2",
        behaviour="A run has runId, templateId, sessionId, ownsSession, status, progress, metrics, result, error, artifactIds, createdAt and updatedAt.",
    ),
    Requirement(
        id="004/run-object/camel-case",
        source="spec README.md, JSON case",
        behaviour="Every member of the contract is spelt in camelCase.",
    ),
    Requirement(
        id="004/run-object/timestamps",
        source="seed 004 §3.2",
        behaviour="createdAt and updatedAt are Unix time in milliseconds as numbers.",
    ),
    Requirement(
        id="004/run-object/updated-at-moves",
        source="seed 004 §3.2",
        behaviour="updatedAt is the time of the run's last change and never before createdAt.",
    ),
    Requirement(
        id="004/run-object/nulls-before-end",
        source="seed 004 §3.2",
        behaviour="Before the end result and error are explicit nulls.",
    ),
    Requirement(
        id="004/run-object/result-on-success",
        source="seed 004 §3.2",
        behaviour="A run that is succeeded or partial_success has its result.",
    ),
    Requirement(
        id="004/run-object/error-on-failure",
        source="seed 004 §3.2",
        behaviour="A run that is failed or canceled has an error that explains it.",
    ),
    Requirement(
        id="004/run-object/error-shape",
        source="spec browser.md, Run object",
        behaviour="A run's error has errorCode and message and may have details.",
    ),
    Requirement(
        id="004/run-object/progress",
        source="seed 004 §3.2",
        behaviour="progress counts doneSteps of totalSteps and only rises.",
    ),
    Requirement(
        id="004/run-object/elapsed-live",
        source="spec browser.md, Run object",
        behaviour="metrics.elapsedMs grows while the run works and stands still after its end.",
    ),
    Requirement(
        id="004/run-object/artifact-ids",
        source="seed 004 §3.2",
        behaviour="artifactIds names every artifact of the run.",
    ),
    Requirement(
        id="004/run-object/owns-session",
        source="seed 004 §3.2",
        behaviour="ownsSession is true where the run made its own session.",
    ),
    Requirement(
        id="004/sessions/own-context",
        source="spec browser.md, Sessions",
        behaviour="A run without sessionId has an isolated context of its own.",
    ),
    Requirement(
        id="004/sessions/closed-once",
        source="spec browser.md, Sessions",
        behaviour="A run's own context is closed exactly once at its end.",
    ),
    Requirement(
        id="004/sessions/login-kept",
        source="spec browser.md, Sessions",
        behaviour="The session of login_keep_session stays open after its run.",
    ),
    Requirement(
        id="004/sessions/given-not-closed",
        source="spec browser.md, Sessions",
        behaviour="A session that was given to a run is never closed by it.",
    ),
    Requirement(
        id="004/sessions/client-gone",
        source="spec browser.md, Sessions",
        behaviour="A client that goes away has its sessions closed after a grace.",
    ),
    Requirement(
        id="004/sessions/no-leaks-between",
        source="spec browser.md, Sessions",
        behaviour="Cookies and storage of one session are not seen in another.",
    ),
    Requirement(
        id="004/sessions/credentials-nowhere",
        source="spec browser.md, Credentials",
        behaviour="Credentials appear in no log, run, artifact, event or error.",
    ),
    Requirement(
        id="004/status/values",
        source="seed 004 §3.1",
        behaviour="A run's status is queued, running, succeeded, failed, partial_success or canceled.",
    ),
    Requirement(
        id="004/status/illegal-moves",
        source="seed 004 §3.1",
        behaviour="Every move of a run that is not in the table is refused.",
    ),
    Requirement(
        id="004/status/all-succeeded",
        source="spec browser.md, Status from a summary",
        behaviour="A run all of whose items succeeded is succeeded.",
    ),
    Requirement(
        id="004/status/half-succeeded",
        source="spec browser.md, Status from a summary",
        behaviour="A run at least half of whose items succeeded is partial_success.",
    ),
    Requirement(
        id="004/status/fewer-succeeded",
        source="spec browser.md, Status from a summary",
        behaviour="A run with fewer successes is failed with STEP_EXECUTION_FAILED and the failing items in details.",
    ),
    Requirement(
        id="004/status/terminal-stays",
        source="seed 004 §3.2",
        behaviour="A run that has ended never changes its status.",
    ),
    Requirement(
        id="004/templates/all-version-1",
        source="spec browser.md, Templates",
        behaviour="The six templates are offered, each as version 1.0.0.",
    ),
    Requirement(
        id="004/templates/batch-inputs",
        source="spec browser.md, batch_extract_pages",
        behaviour="batch_extract_pages takes urls, extract and concurrency.",
    ),
    Requirement(
        id="004/templates/batch-urls-range",
        source="spec browser.md, batch_extract_pages",
        behaviour="batch_extract_pages takes 1 to 1000 URLs.",
    ),
    Requirement(
        id="004/templates/batch-defaults",
        source="spec browser.md, batch_extract_pages",
        behaviour="batch_extract_pages defaults to pageInfo, content, 50 elements, 4000 characters and concurrency 3.",
    ),
    Requirement(
        id="004/templates/batch-ranges",
        source="spec browser.md, batch_extract_pages",
        behaviour="maxElements of 1 to 1000, maxContentLength of 1 to 50000 and concurrency of 1 to 5 are accepted and others refused.",
    ),
    Requirement(
        id="004/templates/batch-result",
        source="spec browser.md, batch_extract_pages",
        behaviour="batch_extract_pages answers a summary and one item per URL.",
    ),
    Requirement(
        id="004/templates/batch-order",
        source="spec browser.md, batch_extract_pages",
        behaviour="The items are in the order of the input.",
    ),
    Requirement(
        id="004/templates/batch-bad-url",
        source="spec browser.md, batch_extract_pages",
        behaviour="A bad URL fails its item and no other.",
    ),
    Requirement(
        id="004/templates/batch-retry",
        source="spec browser.md, batch_extract_pages",
        behaviour="A page that timed out or crashed is tried once more.",
    ),
    Requirement(
        id="004/templates/batch-limits-kept",
        source="spec browser.md, batch_extract_pages",
        behaviour="No item has more elements or longer content than was asked for.",
    ),
    Requirement(
        id="004/templates/item-main",
        source="spec browser.md, v2: Items",
        behaviour="An item has `main`: title, byline, published, language, text, markdown, tables as rows and links of the article.",
    ),
    Requirement(
        id="004/templates/item-truncated",
        source="spec browser.md, v2: Items",
        behaviour="Where something was cut there is `truncated` and `totalLength`; `extract.fullText` cuts nothing of the main text.",
    ),
    Requirement(
        id="004/templates/item-frames",
        source="spec browser.md, v2: Items",
        behaviour="An item has the text of the page's frames, and names those of other sites.",
    ),
    Requirement(
        id="004/templates/item-honest",
        source="spec browser.md, v2: Items",
        behaviour="An item has httpStatus, finalUrl and redirects; a 4xx or 5xx, the browser's error page, a check for robots and an empty document are failures with a code and a hint.",
    ),
    Requirement(
        id="004/templates/item-documents",
        source="spec browser.md, v2: Items",
        behaviour="A PDF is answered as text and pages; it and any other file are artifacts with their type.",
    ),
    Requirement(
        id="004/templates/login-inputs",
        source="spec browser.md, login_keep_session",
        behaviour="login_keep_session takes startUrl, credentials, fields and an optional successIndicator.",
    ),
    Requirement(
        id="004/templates/login-selector",
        source="spec browser.md, login_keep_session",
        behaviour="Login fields are found by selector.",
    ),
    Requirement(
        id="004/templates/login-semantic",
        source="spec browser.md, login_keep_session",
        behaviour="Login fields are found by meaning.",
    ),
    Requirement(
        id="004/templates/login-indicators",
        source="spec browser.md, login_keep_session",
        behaviour="Success is told by selector, urlContains, textIncludes or stable.",
    ),
    Requirement(
        id="004/templates/login-result",
        source="spec browser.md, login_keep_session",
        behaviour="login_keep_session answers success, sessionId, finalUrl, title, loginState and cookiesSaved.",
    ),
    Requirement(
        id="004/templates/login-session-usable",
        source="spec browser.md, login_keep_session",
        behaviour="The session that login answers is signed in for the next run.",
    ),
    Requirement(
        id="004/templates/login-field-absent",
        source="spec browser.md, login_keep_session",
        behaviour="A login field that is absent is TPL_LOGIN_FIELD_NOT_FOUND.",
    ),
    Requirement(
        id="004/templates/login-failed",
        source="spec browser.md, login_keep_session",
        behaviour="A login that does not succeed is a failed run.",
    ),
    Requirement(
        id="004/templates/compare-inputs",
        source="spec browser.md, multi_tab_compare",
        behaviour="multi_tab_compare takes 1 to 10 URLs, extract, compare and concurrency.",
    ),
    Requirement(
        id="004/templates/compare-result",
        source="spec browser.md, multi_tab_compare",
        behaviour="multi_tab_compare answers a summary, snapshots and diffs.",
    ),
    Requirement(
        id="004/templates/compare-fields",
        source="spec browser.md, multi_tab_compare",
        behaviour="title, elementCount and topSections are compared.",
    ),
    Requirement(
        id="004/templates/compare-delta",
        source="spec browser.md, multi_tab_compare",
        behaviour="A numeric diff has its delta, and none within numericTolerance is a diff.",
    ),
    Requirement(
        id="004/templates/compare-positions",
        source="spec browser.md, multi_tab_compare",
        behaviour="A diff of topSections says which positions changed.",
    ),
    Requirement(
        id="004/templates/search-flow",
        source="spec browser.md, search_extract",
        behaviour="search_extract fills the search field, submits and extracts what comes.",
    ),
    Requirement(
        id="004/templates/search-open-result",
        source="spec browser.md, search_extract",
        behaviour="search_extract opens a result where it is asked to.",
    ),
    Requirement(
        id="004/templates/search-waits",
        source="spec browser.md, search_extract",
        behaviour="search_extract waits for the results where it is told how.",
    ),
    Requirement(
        id="004/templates/paginated-flow",
        source="spec browser.md, paginated_extract",
        behaviour="paginated_extract follows next and answers a summary and pages.",
    ),
    Requirement(
        id="004/templates/paginated-max",
        source="spec browser.md, paginated_extract",
        behaviour="paginated_extract stops at maxPages of 1 to 50 with max_pages.",
    ),
    Requirement(
        id="004/templates/paginated-repeated",
        source="spec browser.md, paginated_extract",
        behaviour="paginated_extract stops at a page that it has seen with repeated_page.",
    ),
    Requirement(
        id="004/templates/paginated-unavailable",
        source="spec browser.md, paginated_extract",
        behaviour="paginated_extract stops where there is no next with next_unavailable.",
    ),
    Requirement(
        id="004/templates/submit-flow",
        source="spec browser.md, submit_and_verify",
        behaviour="submit_and_verify fills the fields, submits and checks the indicator.",
    ),
    Requirement(
        id="004/templates/submit-not-verified",
        source="spec browser.md, submit_and_verify",
        behaviour="submit_and_verify whose indicator does not show is a failed run.",
    ),
    Requirement(
        id="004/templates/locator",
        source="spec browser.md, Locator",
        behaviour="A locator is by selector or by meaning, and any other mode is refused.",
    ),
    Requirement(
        id="004/templates/wait",
        source="spec browser.md, Locator",
        behaviour="A wait has a type, a value and a timeoutMs of 1 to 120000, 10000 by default.",
    ),
    Requirement(
        id="004/templates/page-info",
        source="spec browser.md, pageInfo",
        behaviour="pageInfo has the page, its elements with id, role, label, actions, state and bounds, and totalElements.",
    ),
    Requirement(
        id="004/templates/content",
        source="spec browser.md, content",
        behaviour="content has title, sections, links, images and metadata.",
    ),
    Requirement(
        id="004/tools/exactly-seven",
        source="spec browser.md, Exactly the seven tools",
        behaviour="The server lists exactly the seven tools of the contract.",
    ),
    Requirement(
        id="004/tools/list-task-templates",
        source="seed 004 §2",
        behaviour="`list_task_templates` lists the templates with their versions.",
    ),
    Requirement(
        id="004/tools/run-task-template",
        source="seed 004 §2",
        behaviour="`run_task_template` runs a template.",
    ),
    Requirement(
        id="004/tools/get-task-run",
        source="seed 004 §2",
        behaviour="`get_task_run` answers a run.",
    ),
    Requirement(
        id="004/tools/list-task-runs",
        source="seed 004 §2",
        behaviour="`list_task_runs` answers the runs.",
    ),
    Requirement(
        id="004/tools/cancel-task-run",
        source="seed 004 §2",
        behaviour="`cancel_task_run` cancels a run.",
    ),
    Requirement(
        id="004/tools/get-artifact",
        source="seed 004 §2",
        behaviour="`get_artifact` answers a chunk of an artifact.",
    ),
    Requirement(
        id="004/tools/get-runtime-profile",
        source="seed 004 §2",
        behaviour="`get_runtime_profile` answers the limits in force.",
    ),
    Requirement(
        id="004/tools/no-subscribe",
        source="seed 004 §1",
        behaviour="`subscribe_task_run_events` is not offered in v1.",
    ),
    Requirement(
        id="004/tools/input-schemas",
        source="seed 004 §4.1",
        behaviour="Each tool has an input schema that says what the contract says.",
    ),
    Requirement(
        id="004/tools/output-schemas",
        source="spec browser.md, Results",
        behaviour="Each tool has an output schema that its results satisfy.",
    ),
    Requirement(
        id="004/tools/structured-and-text",
        source="spec browser.md, Results",
        behaviour="Each result is structured content and the same JSON as text.",
    ),
    Requirement(
        id="004/transports/stdio",
        source="spec browser.md, Exactly the seven tools",
        behaviour="The server speaks MCP over stdio with trust `local`.",
    ),
    Requirement(
        id="004/transports/stdio-clean",
        source="spec browser.md, Exactly the seven tools",
        behaviour="On stdio, stdout carries the protocol alone.",
    ),
    Requirement(
        id="004/transports/sse",
        source="spec browser.md, Exactly the seven tools",
        behaviour="The server speaks MCP over SSE at `GET /mcp/sse` and `POST /mcp/message?sessionId=` with trust `remote`.",
    ),
    Requirement(
        id="004/transports/http",
        source="spec browser.md, Exactly the seven tools",
        behaviour="The server speaks streamable HTTP at `/mcp` with trust `remote`.",
    ),
    Requirement(
        id="004/transports/one-store",
        source="spec browser.md, Exactly the seven tools",
        behaviour="A run that one connection started is seen by every other, whatever its transport.",
    ),
    Requirement(
        id="004/trust/remote-file",
        source="spec browser.md, Trust remote",
        behaviour="With trust remote a file: URL is refused for its item.",
    ),
    Requirement(
        id="004/trust/remote-private",
        source="spec browser.md, Trust remote",
        behaviour="With trust remote private, loopback and link-local targets are refused for their items.",
    ),
    Requirement(
        id="004/trust/remote-numeric",
        source="spec browser.md, Trust remote",
        behaviour="With trust remote numeric and IPv6-mapped forms of such targets are refused.",
    ),
    Requirement(
        id="004/trust/remote-redirects",
        source="spec browser.md, Trust remote",
        behaviour="With trust remote a redirect to such a target is refused.",
    ),
    Requirement(
        id="004/trust/remote-sub-resources",
        source="spec browser.md, Trust remote",
        behaviour="With trust remote what the page itself loads from such a target is refused.",
    ),
    Requirement(
        id="004/trust/remote-dns-pinned",
        source="spec browser.md, Trust remote",
        behaviour="With trust remote the address that was checked is the one connected to.",
    ),
    Requirement(
        id="004/trust/remote-login",
        source="spec browser.md, Trust remote",
        behaviour="With trust remote login_keep_session is TRUST_LEVEL_NOT_ALLOWED.",
    ),
    Requirement(
        id="004/trust/per-item",
        source="spec browser.md, Trust remote",
        behaviour="A refused target fails its item and the others are extracted.",
    ),
)
