"""What the runner contract (seed 000) asks for. Only data."""

from typing import Final

from tests.conformance.requirement import Requirement

REQUIREMENTS: Final[tuple[Requirement, ...]] = (
    Requirement(
        id="000/answer/direct-success",
        source="seed 000 §4.1",
        behaviour="A bare `{ok:true, output}` is taken as the result.",
    ),
    Requirement(
        id="000/answer/direct-failure",
        source="seed 000 §4.1",
        behaviour="A bare `{ok:false, error{code,message}}` is taken as the result.",
    ),
    Requirement(
        id="000/answer/direct-round-trip",
        source="seed 000 §4.1",
        behaviour="The seed's two direct answers parse into their model and come back the same.",
    ),
    Requirement(
        id="000/answer/wrapped",
        source="seed 000 §4.2",
        behaviour="`{updates, result}` is taken as updates and result.",
    ),
    Requirement(
        id="000/answer/wrapped-round-trip",
        source="seed 000 §4.2",
        behaviour="The seed's wrapped answer parses into its model and comes back the same.",
    ),
    Requirement(
        id="000/answer/wrapped-without-updates",
        source="seed 000 §4.2",
        behaviour="`updates` may be left out of a wrapped answer.",
    ),
    Requirement(
        id="000/answer/result-wins",
        source="spec runner.md, The result",
        behaviour="Where `result` is an object it is the result, else the body itself is.",
    ),
    Requirement(
        id="000/answer/2xx-parsed",
        source="seed 000 §5",
        behaviour="Any 2xx answer is parsed as JSON and handled as a ToolResult.",
    ),
    Requirement(
        id="000/answer/non-2xx",
        source="seed 000 §5",
        behaviour="An answer outside 2xx is TOOL_EXEC_FAILED.",
    ),
    Requirement(
        id="000/answer/non-2xx-message",
        source="spec runner.md, Non-2xx",
        behaviour="The message of a non-2xx failure holds the status and the first 240 characters of the body, white space folded.",
    ),
    Requirement(
        id="000/answer/not-json",
        source="seed 000 §5",
        behaviour="A body that is not JSON is TOOL_EXEC_FAILED.",
    ),
    Requirement(
        id="000/answer/not-an-object",
        source="spec runner.md, Non-2xx",
        behaviour="A body that is JSON but no object is TOOL_EXEC_FAILED and quotes 120 characters of it.",
    ),
    Requirement(
        id="000/answer/wrong-structure",
        source="seed 000 §5",
        behaviour="A body that is no ToolResult is TOOL_EXEC_FAILED.",
    ),
    Requirement(
        id="000/answer/ok-must-be-boolean",
        source="spec runner.md, The result",
        behaviour="An `ok` that is not a boolean is TOOL_EXEC_FAILED.",
    ),
    Requirement(
        id="000/answer/output-must-be-string",
        source="spec runner.md, The result",
        behaviour="With ok=true an `output` that is not a string is TOOL_EXEC_FAILED.",
    ),
    Requirement(
        id="000/answer/output-absent",
        source="spec runner.md, The result",
        behaviour="With ok=true and no output, the output is empty.",
    ),
    Requirement(
        id="000/answer/output-from-updates",
        source="spec runner.md, The result",
        behaviour="With ok=true, no output and some updates, the output is the updates' joined deltas.",
    ),
    Requirement(
        id="000/answer/error-code-kept",
        source="spec runner.md, The result",
        behaviour="With ok=false the runner's `error.code` and `error.message` are handed on.",
    ),
    Requirement(
        id="000/answer/error-code-default",
        source="spec runner.md, The result",
        behaviour="With ok=false and no `error.code`, the code is TOOL_EXEC_FAILED.",
    ),
    Requirement(
        id="000/answer/no-policy-from-runner",
        source="seed 000 §6",
        behaviour="POLICY_DENIED from a runner becomes TOOL_EXEC_FAILED.",
    ),
    Requirement(
        id="000/answer/unknown-members",
        source="spec runner.md, Unknown members",
        behaviour="Members of the answer that are not in the contract are ignored.",
    ),
    Requirement(
        id="000/answer/never-raises",
        source="spec runner.md, Unknown members",
        behaviour="Every failure of a runner is a ToolResult and never an exception that reaches the caller.",
    ),
    Requirement(
        id="000/audit/filter-tenant",
        source="spec runner.md, audit.query",
        behaviour="audit.query filters by tenantId.",
    ),
    Requirement(
        id="000/audit/filter-workspace",
        source="spec runner.md, audit.query",
        behaviour="audit.query filters by workspaceId.",
    ),
    Requirement(
        id="000/audit/filter-action",
        source="spec runner.md, audit.query",
        behaviour="audit.query filters by the exact action.",
    ),
    Requirement(
        id="000/audit/filter-from-to",
        source="spec runner.md, audit.query",
        behaviour="`from` and `to` are ISO times and inclusive.",
    ),
    Requirement(
        id="000/audit/filter-device-run-decision",
        source="spec runner.md, audit.query",
        behaviour="audit.query filters by deviceId, runId and decision.",
    ),
    Requirement(
        id="000/audit/limit-default",
        source="spec runner.md, audit.query",
        behaviour="audit.query gives 50 rows unless a limit is given.",
    ),
    Requirement(
        id="000/audit/limit-maximum",
        source="spec runner.md, audit.query",
        behaviour="audit.query gives at most 500 rows.",
    ),
    Requirement(
        id="000/audit/newest-first",
        source="spec runner.md, audit.query",
        behaviour="Rows come newest first by id.",
    ),
    Requirement(
        id="000/audit/cursor",
        source="spec runner.md, audit.query",
        behaviour="A cursor gives the rows whose id is smaller.",
    ),
    Requirement(
        id="000/audit/next-cursor",
        source="spec runner.md, audit.query",
        behaviour="`nextCursor` is there only where more rows follow.",
    ),
    Requirement(
        id="000/audit/stable-paging",
        source="spec runner.md, audit.query",
        behaviour="Paging neither repeats nor skips a row while new rows arrive.",
    ),
    Requirement(
        id="000/audit/created-at",
        source="spec README.md, time on the wire",
        behaviour="`createdAt` of a row is ISO 8601 with milliseconds and Z.",
    ),
    Requirement(
        id="000/audit/row-shape",
        source="spec runner.md, audit.query",
        behaviour="A row has id, tenantId, workspaceId, action, actor, metadata and createdAt, and may have resourceType and resourceId.",
    ),
    Requirement(
        id="000/audit/unknown-action",
        source="spec runner.md, audit.query",
        behaviour="An unknown action gives no items and is ok.",
    ),
    Requirement(
        id="000/commands/sent-as-bash-exec",
        source="spec runner.md, One tool",
        behaviour="On a docker-runner target each command tool is sent as `bash.exec {cmd, cwd?, timeoutMs?}`.",
    ),
    Requirement(
        id="000/commands/argv-sent-as-exec",
        source="spec runner.md, One tool",
        behaviour="A program with its arguments is sent as `exec ` and its quoted words, and a runner of ours runs it without a shell.",
    ),
    Requirement(
        id="000/commands/deny-covers-names",
        source="spec runner.md, One tool",
        behaviour="A deny or an ask that names `shell`, `exec`, `bash.exec` or `system.exec` covers all of them.",
    ),
    Requirement(
        id="000/commands/allow-lists",
        source="spec runner.md, One tool",
        behaviour="An allow covers only the names of the command tool that it lists.",
    ),
    Requirement(
        id="000/commands/offered",
        source="spec runner.md, One tool",
        behaviour="Models are offered `shell` and `http.fetch`, and none of their other names.",
    ),
    Requirement(
        id="000/commands/clean",
        source="spec runner.md, One tool",
        behaviour="A command that a rule allows by its words runs clean on a runner of ours; on a runner that does not promise so, the allow does not count.",
    ),
    Requirement(
        id="000/e2e/script",
        source="seed 000 §9",
        behaviour="`npm run test:p2:e2e` runs the end-to-end check.",
    ),
    Requirement(
        id="000/e2e/mock-runner-hit",
        source="seed 000 §9",
        behaviour="Three runs through gateway and mock runner have results that contain `mock-runner:bash.exec`.",
    ),
    Requirement(
        id="000/e2e/bearer-on-each-call",
        source="spec runner.md, The end-to-end check",
        behaviour="Each call that reached the runner carried the target's bearer.",
    ),
    Requirement(
        id="000/e2e/console-up",
        source="spec runner.md, The end-to-end check",
        behaviour="The console answers 200 with its title beside the gateway and the runner.",
    ),
    Requirement(
        id="000/e2e/audit-page-one",
        source="seed 000 §9",
        behaviour="audit.query with action, from, to and limit 1 gives one item and a numeric nextCursor.",
    ),
    Requirement(
        id="000/e2e/audit-page-two",
        source="spec runner.md, The end-to-end check",
        behaviour="The second page has a smaller id than the first.",
    ),
    Requirement(
        id="000/e2e/audit-unknown-action",
        source="spec runner.md, The end-to-end check",
        behaviour="audit.query with an unknown action is ok and empty through the gateway as well.",
    ),
    Requirement(
        id="000/e2e/real-runner",
        source="seed 000 §9",
        behaviour="The same check passes against the real runner in place of the mock.",
    ),
    Requirement(
        id="000/endpoint/from-target",
        source="seed 000 §2",
        behaviour="The gateway posts to the execution target's `endpoint`.",
    ),
    Requirement(
        id="000/endpoint/trimmed",
        source="spec runner.md, Endpoint",
        behaviour="White space around the endpoint is removed before use.",
    ),
    Requirement(
        id="000/endpoint/blank-uses-config",
        source="spec runner.md, Endpoint",
        behaviour="A blank endpoint falls back to `config.endpoint`.",
    ),
    Requirement(
        id="000/endpoint/missing-fails",
        source="seed 000 §6",
        behaviour="A target without any endpoint fails with TOOL_EXEC_FAILED.",
    ),
    Requirement(
        id="000/endpoint/missing-makes-no-call",
        source="spec runner.md, Endpoint",
        behaviour="A target without any endpoint makes no network call.",
    ),
    Requirement(
        id="000/endpoint/query-kept",
        source="spec runner.md, Endpoint",
        behaviour="A query string in the endpoint is kept.",
    ),
    Requirement(
        id="000/endpoint/http-and-https",
        source="spec runner.md, Endpoint",
        behaviour="Both http and https endpoints are spoken to.",
    ),
    Requirement(
        id="000/failure/connection",
        source="seed 000 §6",
        behaviour="A refused or broken connection is TOOL_EXEC_FAILED.",
    ),
    Requirement(
        id="000/failure/policy-by-gateway-only",
        source="seed 000 §6",
        behaviour="POLICY_DENIED is made by the gateway's policy before any runner traffic.",
    ),
    Requirement(
        id="000/failure/isolated-targets",
        source="spec runner.md, A failure",
        behaviour="A failure of one target affects no call to another.",
    ),
    Requirement(
        id="000/failure/probe",
        source="spec runner.md, A target that failed",
        behaviour="After five failures in a row a target is skipped for at most 2 s; the first call after that is a probe, and if it succeeds the target is used again.",
    ),
    Requirement(
        id="000/health/no-call-waits",
        source="spec runner.md, No request to a runner",
        behaviour="A runner is asked for its health when its target is set and at most every 30 s, and no call waits for that.",
    ),
    Requirement(
        id="000/health/no-health",
        source="spec runner.md, No request to a runner",
        behaviour="Health is asked for beside the endpoint's last path segment; a runner that answers 404 has no health and is not offline.",
    ),
    Requirement(
        id="000/request/post",
        source="seed 000 §2",
        behaviour="The gateway calls the runner with POST.",
    ),
    Requirement(
        id="000/request/content-type",
        source="seed 000 §2",
        behaviour="The request carries `content-type: application/json`.",
    ),
    Requirement(
        id="000/request/bearer-when-token",
        source="seed 000 §2",
        behaviour="A target with a token is called with `authorization: Bearer <token>`.",
    ),
    Requirement(
        id="000/request/no-bearer-without-token",
        source="spec runner.md, POST",
        behaviour="A target without a token is called without an authorization header.",
    ),
    Requirement(
        id="000/request/no-redirects",
        source="spec runner.md, POST",
        behaviour="A redirect of the runner is never followed and counts as a failure.",
    ),
    Requirement(
        id="000/request/body-shape",
        source="seed 000 §3",
        behaviour="The body is an object of exactly `call`, `ctx` and `target`.",
    ),
    Requirement(
        id="000/request/body-round-trip",
        source="seed 000 §3",
        behaviour="The seed's request example parses into its model and comes back the same.",
    ),
    Requirement(
        id="000/request/call-name",
        source="seed 000 §3",
        behaviour="`call.name` is required and is the tool's name.",
    ),
    Requirement(
        id="000/request/call-args-object",
        source="seed 000 §3",
        behaviour="`call.args` is required and is an object.",
    ),
    Requirement(
        id="000/request/ctx-ids",
        source="seed 000 §3",
        behaviour="`ctx.runId`, `ctx.sessionId` and `ctx.runtimeMode` are always sent.",
    ),
    Requirement(
        id="000/request/ctx-tool-call-id",
        source="spec runner.md, Body",
        behaviour="`ctx.toolCallId` is sent where there is one and left out where there is none.",
    ),
    Requirement(
        id="000/request/target-snapshot",
        source="seed 000 §3",
        behaviour="`target` is a snapshot of targetId, kind, tenantId and workspaceId.",
    ),
    Requirement(
        id="000/request/target-no-workspace",
        source="spec runner.md, Body",
        behaviour="`target.workspaceId` is left out for a target of a whole tenant.",
    ),
    Requirement(
        id="000/request/camel-case",
        source="spec README.md, JSON case",
        behaviour="Every member of the request is spelt in camelCase.",
    ),
    Requirement(
        id="000/request/cancel-aborts",
        source="spec runner.md, Cancelling",
        behaviour="Cancelling the run aborts the request to the runner.",
    ),
    Requirement(
        id="000/server/execute",
        source="seed 000 §8",
        behaviour="`POST /execute` runs one tool call and answers 200.",
    ),
    Requirement(
        id="000/server/seed-curl",
        source="seed 000 §8",
        behaviour="The seed's curl example, without toolCallId and workspaceId, is answered.",
    ),
    Requirement(
        id="000/server/optional-ids",
        source="spec runner.md, Body",
        behaviour="A runner takes `ctx.toolCallId` and `target.workspaceId` as optional.",
    ),
    Requirement(
        id="000/server/unknown-members",
        source="spec runner.md, Body",
        behaviour="A runner ignores members that it does not know.",
    ),
    Requirement(
        id="000/server/health",
        source="spec runner.md, POST /execute",
        behaviour="`GET /health` answers ok, service `docker-runner`, backend, usage in percent and time.",
    ),
    Requirement(
        id="000/server/health-time",
        source="spec README.md, time on the wire",
        behaviour="The time in health is ISO 8601 with milliseconds and Z.",
    ),
    Requirement(
        id="000/server/bearer",
        source="spec runner.md, POST /execute",
        behaviour="A runner with a token refuses a call without it or with another.",
    ),
    Requirement(
        id="000/server/bearer-constant-time",
        source="spec runner.md, POST /execute",
        behaviour="The bearer is compared in constant time.",
    ),
    Requirement(
        id="000/server/body-limit",
        source="spec runner.md, POST /execute",
        behaviour="A body over the limit is refused without being read to its end.",
    ),
    Requirement(
        id="000/server/unauthorized",
        source="spec runner.md, 401",
        behaviour="A refused bearer is 401 with code UNAUTHORIZED in the error envelope.",
    ),
    Requirement(
        id="000/server/invalid-request",
        source="spec runner.md, 401",
        behaviour="A malformed request is 400 with code INVALID_REQUEST.",
    ),
    Requirement(
        id="000/server/not-found",
        source="spec runner.md, 401",
        behaviour="An unknown path is 404.",
    ),
    Requirement(
        id="000/server/internal-error",
        source="spec runner.md, 401",
        behaviour="An unexpected failure is 500 with code INTERNAL_ERROR.",
    ),
    Requirement(
        id="000/server/mock-output",
        source="seed 000 §8",
        behaviour="The mock answers output `mock-runner:<tool>`.",
    ),
    Requirement(
        id="000/server/mock-update",
        source="spec runner.md, A --mock mode",
        behaviour="The mock sends one update `runner:<tool>`.",
        superseded_by="000/server/mock-exact",
    ),
    Requirement(
        id="000/server/mock-exact",
        source="seed 000 §8",
        behaviour="The mock answers exactly the body of the seed's example.",
    ),
    Requirement(
        id="000/server/mock-stream",
        source="spec runner.md, mock answers",
        behaviour="A gateway that asks for NDJSON gets one update and the same result from the mock.",
    ),
    Requirement(
        id="000/server/host",
        source="spec runner.md, toolgate runner without RUNNER_AUTH_TOKEN",
        behaviour="A runner without a token refuses every request whose Host is a name of another machine, and what a web page sends.",
    ),
    Requirement(
        id="000/server/open-on-loopback",
        source="spec runner.md, toolgate runner without RUNNER_AUTH_TOKEN",
        behaviour="Without a token the runner answers the seed's curl on loopback, and does not start elsewhere.",
    ),
    Requirement(
        id="000/server/default-port",
        source="spec README.md, Default ports",
        behaviour="The runner listens on 127.0.0.1:18081 unless told otherwise.",
    ),
    Requirement(
        id="000/server/executed-failure-is-200",
        source="seed 000 §4.1",
        behaviour="A tool that ran and failed is answered 200 with ok=false.",
    ),
    Requirement(
        id="000/targets/default-takes",
        source="spec runner.md, A default target",
        behaviour="A default target takes the command tools, `python.exec`, `file.*` and `http.request`, and no other tool.",
    ),
    Requirement(
        id="000/targets/shape",
        source="spec runner.md, Execution targets",
        behaviour="A target has targetId, tenantId, kind, isDefault, enabled, config, version and updatedAt, and may have workspaceId and endpoint.",
    ),
    Requirement(
        id="000/targets/kinds",
        source="spec runner.md, Execution targets",
        behaviour="The kinds are `local-host` and `docker-runner`, and any other is refused.",
    ),
    Requirement(
        id="000/targets/built-in",
        source="spec runner.md, Execution targets",
        behaviour="A built-in target `target_local_default` always exists.",
    ),
    Requirement(
        id="000/targets/choice-explicit",
        source="spec runner.md, Execution targets",
        behaviour="A target named in the call is used before any default.",
    ),
    Requirement(
        id="000/targets/choice-unknown-refused",
        source="spec runner.md, Execution targets",
        behaviour="A call that names an unknown target is refused.",
    ),
    Requirement(
        id="000/targets/choice-agent",
        source="spec runner.md, Execution targets",
        behaviour="Without an explicit target the agent's own is used.",
    ),
    Requirement(
        id="000/targets/choice-workspace-default",
        source="spec runner.md, Execution targets",
        behaviour="Next comes the default of the workspace.",
    ),
    Requirement(
        id="000/targets/choice-tenant-default",
        source="spec runner.md, Execution targets",
        behaviour="Next comes the default of the tenant.",
    ),
    Requirement(
        id="000/targets/choice-built-in",
        source="spec runner.md, Execution targets",
        behaviour="Last comes `target_local_default`.",
    ),
    Requirement(
        id="000/targets/disabled-denied",
        source="spec runner.md, Execution targets",
        behaviour="A call to a disabled target is answered POLICY_DENIED.",
    ),
    Requirement(
        id="000/targets/upsert-keeps-omitted",
        source="spec runner.md, Execution targets",
        behaviour="Members that an upsert leaves out are kept.",
    ),
    Requirement(
        id="000/targets/upsert-version",
        source="spec runner.md, Execution targets",
        behaviour="Each upsert raises `version` by one and sets `updatedAt`.",
    ),
    Requirement(
        id="000/targets/one-default",
        source="spec runner.md, Execution targets",
        behaviour="`isDefault: true` clears the flag on the other targets of the same tenant and workspace only.",
    ),
    Requirement(
        id="000/targets/token-write-only",
        source="spec runner.md, Execution targets",
        behaviour="Reading targets shows that there is a token and never the token.",
    ),
    Requirement(
        id="000/targets/policy-before-traffic",
        source="spec runner.md, Execution targets",
        behaviour="The policy of the call's own tenant and workspace decides before anything is sent.",
    ),
    Requirement(
        id="000/timeout/default",
        source="seed 000 §7",
        behaviour="Without `config.timeoutMs` the deadline is 15000 ms.",
    ),
    Requirement(
        id="000/timeout/override",
        source="seed 000 §7",
        behaviour="`config.timeoutMs` of the target overrides the default.",
    ),
    Requirement(
        id="000/timeout/capped",
        source="seed 000 §7",
        behaviour="A deadline over 180000 ms is cut to 180000.",
    ),
    Requirement(
        id="000/timeout/floored",
        source="spec runner.md, Timeout",
        behaviour="A fractional `timeoutMs` is floored, so 1500.9 becomes 1500.",
    ),
    Requirement(
        id="000/timeout/smallest",
        source="spec runner.md, Timeout",
        behaviour="A `timeoutMs` of 1 is taken as 1.",
    ),
    Requirement(
        id="000/timeout/not-positive",
        source="spec runner.md, Timeout",
        behaviour="A `timeoutMs` of zero or less becomes 15000.",
    ),
    Requirement(
        id="000/timeout/not-a-number",
        source="spec runner.md, Timeout",
        behaviour="A `timeoutMs` that is NaN, infinite or a string becomes 15000.",
    ),
    Requirement(
        id="000/timeout/total-deadline",
        source="spec runner.md, Timeout",
        behaviour="The deadline is over the whole exchange, so a runner that drips bytes is cut off as well.",
    ),
    Requirement(
        id="000/timeout/fails",
        source="seed 000 §7",
        behaviour="A call that runs out of time fails with TOOL_EXEC_FAILED.",
    ),
    Requirement(
        id="000/tools/bash-exec",
        source="spec runner.md, Tools",
        behaviour="`bash.exec {cmd, cwd?, timeoutMs?, env?}` runs the command and outputs what it printed.",
    ),
    Requirement(
        id="000/tools/bash-timeout",
        source="spec runner.md, Tools",
        behaviour="`bash.exec` past its timeoutMs is killed with everything it started.",
    ),
    Requirement(
        id="000/tools/bash-failure",
        source="spec runner.md, Tools",
        behaviour="A `bash.exec` that exits non-zero is answered ok=false.",
    ),
    Requirement(
        id="000/tools/file-read",
        source="spec runner.md, Tools",
        behaviour="`file.read {path}` outputs the file's content.",
    ),
    Requirement(
        id="000/tools/file-write",
        source="spec runner.md, Tools",
        behaviour="`file.write {path, content}` writes the file anew.",
    ),
    Requirement(
        id="000/tools/file-write-append",
        source="spec runner.md, Tools",
        behaviour="`file.write` with append adds to the file's end.",
    ),
    Requirement(
        id="000/tools/file-list",
        source="spec runner.md, Tools",
        behaviour="`file.list {path?, recursive?, limit}` lists a directory as JSON text.",
    ),
    Requirement(
        id="000/tools/file-list-limit",
        source="spec runner.md, Tools",
        behaviour="`file.list` gives 200 entries unless a limit is given.",
    ),
    Requirement(
        id="000/tools/http-request",
        source="spec runner.md, Tools",
        behaviour="`http.request` makes one guarded HTTP request.",
    ),
    Requirement(
        id="000/tools/python-exec",
        source="spec runner.md, Tools",
        behaviour="`python.exec {code}` runs the code and outputs what it printed.",
    ),
    Requirement(
        id="000/tools/echo",
        source="spec runner.md, Tools",
        behaviour="`echo {text}` outputs the text.",
    ),
    Requirement(
        id="000/tools/math-add",
        source="spec runner.md, Tools",
        behaviour="`math.add {a,b}` outputs the sum.",
    ),
    Requirement(
        id="000/tools/text-upper",
        source="spec runner.md, Tools",
        behaviour="`text.upper {text}` outputs the text in capitals.",
    ),
    Requirement(
        id="000/tools/output-is-string",
        source="spec runner.md, Tools",
        behaviour="A tool's output is always a string, and structured output is JSON text.",
    ),
    Requirement(
        id="000/tools/unknown",
        source="spec runner.md, Tools",
        behaviour="An unknown tool is TOOL_EXEC_FAILED.",
    ),
    Requirement(
        id="000/updates/forwarded",
        source="seed 000 §4.2",
        behaviour="Each update is forwarded as a streamed update of the tool call.",
    ),
    Requirement(
        id="000/updates/in-order-before-result",
        source="spec runner.md, updates",
        behaviour="Updates are forwarded in order and before the result.",
    ),
    Requirement(
        id="000/updates/every-surface",
        source="spec runner.md, Updates are forwarded to every surface",
        behaviour="Updates reach the WebSocket, `/events`, `/v2/ws`, `/tool/run` as events and the console while the tool runs.",
    ),
    Requirement(
        id="000/updates/plain-string",
        source="spec runner.md, updates",
        behaviour="An update may be a plain string.",
    ),
    Requirement(
        id="000/updates/at-defaults-to-now",
        source="spec runner.md, updates",
        behaviour="An update without `at` gets the present time.",
    ),
    Requirement(
        id="000/updates/at-kept",
        source="seed 000 §4.2",
        behaviour="An update's own `at` is kept.",
    ),
    Requirement(
        id="000/updates/without-delta-skipped",
        source="spec runner.md, updates",
        behaviour="An entry without a string delta is skipped and the rest are forwarded.",
    ),
    Requirement(
        id="000/updates/not-an-array",
        source="spec runner.md, updates",
        behaviour="An `updates` that is not an array is ignored.",
    ),
    Requirement(
        id="000/workspace/confined",
        source="spec runner.md, Tools",
        behaviour="A path that leaves the session's workspace is refused.",
    ),
    Requirement(
        id="000/workspace/confined-symlinks",
        source="spec runner.md, Tools",
        behaviour="A symlink that leads out of the workspace is not followed.",
    ),
    Requirement(
        id="000/workspace/per-session",
        source="spec runner.md, Workspaces",
        behaviour="Each tenant, workspace and session has a directory of its own that the others cannot read.",
    ),
    Requirement(
        id="000/workspace/idle-lease",
        source="spec runner.md, Workspaces",
        behaviour="A workspace that was not used for its idle time is removed.",
    ),
    Requirement(
        id="000/workspace/maximum-life",
        source="spec runner.md, Workspaces",
        behaviour="A workspace is removed at its maximum life even when in use.",
    ),
    Requirement(
        id="000/workspace/disk-quota",
        source="spec runner.md, Workspaces",
        behaviour="A session that writes more than its quota gets an error and harms nobody else.",
    ),
)
