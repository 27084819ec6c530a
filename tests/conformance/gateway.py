"""What the gateway contract (seed 002) asks for. Only data."""

from typing import Final

from tests.conformance.requirement import Requirement

REQUIREMENTS: Final[tuple[Requirement, ...]] = (
    Requirement(
        id="002/agent/sync",
        source="seed 002 §3.1",
        behaviour="`POST /command/agent` in mode sync answers with what the agent said.",
    ),
    Requirement(
        id="002/agent/async",
        source="spec gateway.md, A command that waits",
        behaviour="`POST /command/agent` in mode async answers 202 with the run's id.",
    ),
    Requirement(
        id="002/agent/unknown-agent",
        source="seed 002 §3.1",
        behaviour="An unknown agentId is refused.",
    ),
    Requirement(
        id="002/agent/payload",
        source="spec gateway.md, POST /command/agent",
        behaviour="The payload is agentId, message and mode.",
    ),
    Requirement(
        id="002/audit/gateway-row",
        source="seed 002 §5.2",
        behaviour="The gateway records deviceId, capabilityId, idempotencyKey and requestHash.",
    ),
    Requirement(
        id="002/audit/executor-row",
        source="seed 002 §5.2",
        behaviour="The executor records riskLevel, confirmation and result.",
    ),
    Requirement(
        id="002/audit/refused-too",
        source="spec gateway.md, One row per command",
        behaviour="A refused command leaves an audit row too.",
        superseded_by="002/audit/strangers-counted",
    ),
    Requirement(
        id="002/audit/strangers-counted",
        source="spec gateway.md, One row per command",
        behaviour="A refused command of a known caller leaves an audit row. Refusals of callers that nobody knows are counted: one row per minute and address, whichever listener refused.",
    ),
    Requirement(
        id="002/audit/acts",
        source="seed 002 §5.2",
        behaviour="Pairing, tokens, capabilities, targets, agents and the policy: each change leaves an audit row.",
    ),
    Requirement(
        id="002/audit/recounted",
        source="seed 002 §5.2",
        behaviour="Each transaction's audit rows have their hash in the evidence; `toolgate evidence verify` names rows that are missing, changed or added.",
    ),
    Requirement(
        id="002/audit/one-row",
        source="spec gateway.md, One row per command",
        behaviour="A command leaves one row, and a replay none.",
    ),
    Requirement(
        id="002/audit/redacted",
        source="spec gateway.md, One row per command",
        behaviour="No secret is in an audit row.",
    ),
    Requirement(
        id="002/audit/fail-closed",
        source="spec gateway.md, One row per command",
        behaviour="A write or sign command whose audit row cannot be written is not executed.",
    ),
    Requirement(
        id="002/capabilities/register",
        source="seed 002 §4.1",
        behaviour="`POST /capabilities/register` registers a capability.",
    ),
    Requirement(
        id="002/capabilities/register-members",
        source="seed 002 §4.1",
        behaviour="A registration has capabilityId, scope, level, rateLimit, version, owner, expiresAt and status.",
    ),
    Requirement(
        id="002/capabilities/register-levels",
        source="seed 002 §4.1",
        behaviour="A registration's level is read, write or sign, and any other is refused.",
    ),
    Requirement(
        id="002/capabilities/register-statuses",
        source="seed 002 §4.1",
        behaviour="A registration's status is healthy, degraded or offline, and any other is refused.",
    ),
    Requirement(
        id="002/capabilities/register-auth",
        source="spec gateway.md, POST /capabilities/register",
        behaviour="Registering needs the operator's or a service token.",
    ),
    Requirement(
        id="002/capabilities/register-again",
        source="spec gateway.md, POST /capabilities/register",
        behaviour="Registering again updates the capability.",
    ),
    Requirement(
        id="002/capabilities/expired",
        source="spec gateway.md, POST /capabilities/register",
        behaviour="An expired capability is refused.",
    ),
    Requirement(
        id="002/capabilities/offline",
        source="spec gateway.md, POST /capabilities/register",
        behaviour="An offline capability is refused.",
    ),
    Requirement(
        id="002/capabilities/degraded",
        source="spec gateway.md, POST /capabilities/register",
        behaviour="A degraded capability is allowed and the answer is marked.",
    ),
    Requirement(
        id="002/capabilities/rate-limit",
        source="spec gateway.md, POST /capabilities/register",
        behaviour="A capability's rateLimit is enforced for that capability.",
    ),
    Requirement(
        id="002/capabilities/playwright",
        source="seed 002 §4.1",
        behaviour="The Playwright capability has capabilityId `mcp.playwright` and scope `browser`.",
    ),
    Requirement(
        id="002/codes/auth-required",
        source="seed 002 §3",
        behaviour="ERR_AUTH_REQUIRED is given with 401 for no id, no token or an unpaired device.",
    ),
    Requirement(
        id="002/codes/invalid-token",
        source="seed 002 §3",
        behaviour="ERR_INVALID_TOKEN is given with 401 for a wrong token.",
    ),
    Requirement(
        id="002/codes/permission-denied",
        source="seed 002 §3",
        behaviour="ERR_PERMISSION_DENIED is given with 403 for what the caller may not do.",
    ),
    Requirement(
        id="002/codes/idempotency-conflict",
        source="seed 002 §3",
        behaviour="ERR_IDEMPOTENCY_CONFLICT is given with 409 for a key used with another request.",
    ),
    Requirement(
        id="002/codes/rate-limited",
        source="seed 002 §3",
        behaviour="ERR_RATE_LIMITED is given with 429 for too many requests.",
    ),
    Requirement(
        id="002/codes/invalid-request",
        source="seed 002 §3",
        behaviour="ERR_INVALID_REQUEST is given with 400 for a request that cannot be understood.",
    ),
    Requirement(
        id="002/codes/unknown-route",
        source="spec gateway.md, ERR_AUTH_REQUIRED",
        behaviour="An unknown route is 404 with ERR_INVALID_REQUEST.",
    ),
    Requirement(
        id="002/codes/wrong-method",
        source="spec gateway.md, ERR_AUTH_REQUIRED",
        behaviour="A wrong method is 405 with ERR_INVALID_REQUEST.",
    ),
    Requirement(
        id="002/codes/too-large",
        source="spec gateway.md, ERR_AUTH_REQUIRED",
        behaviour="A body over 1 MB is 413 with ERR_INVALID_REQUEST.",
    ),
    Requirement(
        id="002/codes/not-implemented",
        source="spec gateway.md, ERR_AUTH_REQUIRED",
        behaviour="ERR_NOT_IMPLEMENTED is 501.",
    ),
    Requirement(
        id="002/codes/internal",
        source="spec gateway.md, ERR_AUTH_REQUIRED",
        behaviour="ERR_INTERNAL is 500 and shows nothing of its inside.",
    ),
    Requirement(
        id="002/codes/upstream",
        source="spec gateway.md, durationMs",
        behaviour="A host that does not resolve or a dead upstream is `success: false` at `/command/tool`, and 502 ERR_UPSTREAM with `data.outcome` at `/command/system` and `/command/mcp`.",
    ),
    Requirement(
        id="002/codes/unavailable",
        source="spec gateway.md, durationMs",
        behaviour="A full or failing disk is 503 ERR_UNAVAILABLE with the outcome class.",
    ),
    Requirement(
        id="002/codes/one-text-denied",
        source="spec gateway.md, A denied or asked call",
        behaviour="A denied call has one text at every surface: the rule, the reason and what would change it.",
    ),
    Requirement(
        id="002/codes/one-text-asked",
        source="spec gateway.md, A denied or asked call",
        behaviour="A waiting call has one text, which names its approval, at `/tool/run`, MCP, the console, the CLI, schedules and simulations.",
    ),
    Requirement(
        id="002/commands/types",
        source="seed 002 §3",
        behaviour="Commands are posted to `/command/agent`, `/command/tool`, `/command/system` and `/command/mcp`.",
    ),
    Requirement(
        id="002/commands/unknown-type",
        source="seed 002 §3",
        behaviour="Any other command type is ERR_INVALID_REQUEST; with 405, for its path reads a command's state.",
        superseded_by="002/commands/unknown-type-404",
    ),
    Requirement(
        id="002/commands/unknown-type-404",
        source="spec gateway.md, durationMs",
        behaviour="`POST /command/<unknown>` is 404 with ERR_INVALID_REQUEST.",
    ),
    Requirement(
        id="002/commands/level-too-low",
        source="spec gateway.md, A declared",
        behaviour="A declared `security.level` below the action's is ERR_PERMISSION_DENIED.",
    ),
    Requirement(
        id="002/commands/level-enough",
        source="spec gateway.md, A declared",
        behaviour="A declared `security.level` at or above the action's is let through as far as the device's scope goes.",
    ),
    Requirement(
        id="002/commands/level-values",
        source="seed 002 §3",
        behaviour="`security.level` is read, write or sign, and any other is ERR_INVALID_REQUEST.",
    ),
    Requirement(
        id="002/commands/sign-asks",
        source="spec gateway.md, A declared",
        behaviour="A command of level sign asks for an approval.",
    ),
    Requirement(
        id="002/commands/unknown-tool",
        source="spec gateway.md, A declared",
        behaviour="An unknown tool or capability is refused.",
    ),
    Requirement(
        id="002/commands/pending-202",
        source="spec gateway.md, A command that waits",
        behaviour="A command that waits for an approval answers 202 with status pending, approvalId and requestId.",
    ),
    Requirement(
        id="002/commands/pending-state",
        source="spec gateway.md, A command that waits",
        behaviour="`GET /command/{requestId}?wait=` has the command's state and in the end its answer.",
    ),
    Requirement(
        id="002/commands/pending-replay",
        source="spec gateway.md, A command that waits",
        behaviour="The same Idempotency-Key replays the answer of a pending command once it is there.",
    ),
    Requirement(
        id="002/commands/pipeline",
        source="seed 002 §4.2",
        behaviour="Every command's tool call goes through the tool pipeline.",
    ),
    Requirement(
        id="002/commands/other-devices-command",
        source="spec gateway.md, A command that waits",
        behaviour="A device cannot read the command of another device.",
    ),
    Requirement(
        id="002/envelope/success",
        source="seed 002 §3",
        behaviour="Every command answers ok true, data and traceId.",
    ),
    Requirement(
        id="002/envelope/failure",
        source="seed 002 §3",
        behaviour="Every failure answers ok false, traceId and error with code and message.",
    ),
    Requirement(
        id="002/envelope/json-always",
        source="spec gateway.md, Every answer is JSON",
        behaviour="Every answer is JSON, also those to unknown routes and unreadable bodies.",
    ),
    Requirement(
        id="002/envelope/trace-from-body",
        source="spec gateway.md, Every answer is JSON",
        behaviour="`trace.traceId` of the request comes back as traceId.",
    ),
    Requirement(
        id="002/envelope/trace-from-header",
        source="spec gateway.md, Every answer is JSON",
        behaviour="The trace id of a `traceparent` header comes back as traceId.",
    ),
    Requirement(
        id="002/envelope/trace-made",
        source="spec gateway.md, Every answer is JSON",
        behaviour="Without a trace id one is made.",
    ),
    Requirement(
        id="002/envelope/request-members",
        source="seed 002 §3",
        behaviour="A command takes requestId, actor, sessionKey, route, idempotencyKey, payload, security and trace.",
    ),
    Requirement(
        id="002/envelope/optional-members",
        source="seed 002 §3",
        behaviour="Every member of a command but payload may be left out.",
    ),
    Requirement(
        id="002/envelope/identity-from-server",
        source="seed 002 §3",
        behaviour="`actor` in the body gives the caller no right that its device does not have.",
    ),
    Requirement(
        id="002/envelope/camel-case",
        source="spec README.md, JSON case",
        behaviour="Every member of the gateway's JSON is spelt in camelCase.",
    ),
    Requirement(
        id="002/events/poll-shape",
        source="seed 002 §2.3",
        behaviour="`GET /events/poll?since=` answers a cursor and the events after it.",
    ),
    Requirement(
        id="002/events/event-shape",
        source="seed 002 §2.3",
        behaviour="An event has id, type, time, status, source, message, durationMs and metadata.",
    ),
    Requirement(
        id="002/events/duration-everywhere",
        source="spec gateway.md, durationMs",
        behaviour="Every event has durationMs; that of a start is 0.",
    ),
    Requirement(
        id="002/events/types",
        source="seed 002 §2.3",
        behaviour="The types are health, heartbeat, cron, agent, tool and mcp.",
    ),
    Requirement(
        id="002/events/cursor-rises",
        source="seed 002 §2.3",
        behaviour="The cursor is an integer that only rises.",
    ),
    Requirement(
        id="002/events/cursor-across-restart",
        source="spec gateway.md, GET /events/poll",
        behaviour="The cursor goes on rising across a restart.",
    ),
    Requirement(
        id="002/events/kept-24h",
        source="seed 002 §2.3",
        behaviour="Events are kept for 24 h.",
    ),
    Requirement(
        id="002/events/expired-cursor",
        source="seed 002 §2.3",
        behaviour="An expired cursor is answered 410 with ERR_INVALID_REQUEST and `data.fallback` `/status`.",
    ),
    Requirement(
        id="002/events/future-cursor",
        source="spec gateway.md, GET /events/poll",
        behaviour="A cursor beyond the last event is answered 410 with the same fallback.",
    ),
    Requirement(
        id="002/events/garbage-cursor",
        source="spec gateway.md, GET /events/poll",
        behaviour="A cursor that is no integer is answered 410 with the same fallback.",
    ),
    Requirement(
        id="002/events/missing-cursor",
        source="seed 002 §2.3",
        behaviour="A poll without a cursor answers and tells the client where to begin.",
    ),
    Requirement(
        id="002/events/limit",
        source="spec gateway.md, GET /events/poll",
        behaviour="`limit` bounds the number of events, and the next poll goes on after the last.",
    ),
    Requirement(
        id="002/events/none-lost",
        source="seed 002 §2.3",
        behaviour="A client that polls with each cursor it was given gets every event once and in order.",
    ),
    Requirement(
        id="002/events/long-poll",
        source="spec gateway.md, GET /events/poll",
        behaviour="`wait` holds the answer until an event comes.",
    ),
    Requirement(
        id="002/events/long-poll-bound",
        source="spec gateway.md, GET /events/poll",
        behaviour="`wait` is at most 30 s and then answers no events.",
    ),
    Requirement(
        id="002/events/long-poll-empty-cursor",
        source="spec gateway.md, GET /events/poll",
        behaviour="A long poll that ends without events answers the cursor it was given.",
    ),
    Requirement(
        id="002/events/stream",
        source="spec gateway.md, GET /events/poll",
        behaviour="`GET /events/stream` gives the same events as SSE.",
    ),
    Requirement(
        id="002/events/stream-last-event-id",
        source="spec gateway.md, GET /events/poll",
        behaviour="`Last-Event-ID` resumes the stream after that event.",
    ),
    Requirement(
        id="002/events/command-start-and-end",
        source="spec gateway.md, types",
        behaviour="Each command makes a start and an end event.",
    ),
    Requirement(
        id="002/events/ends-survive-kill",
        source="spec gateway.md, types",
        behaviour="A command that was under way when the process was killed has its end event after the next start.",
    ),
    Requirement(
        id="002/events/command-duration",
        source="spec gateway.md, types",
        behaviour="The end event of a command has its durationMs.",
    ),
    Requirement(
        id="002/events/needs-token",
        source="seed 002 §2.3",
        behaviour="`GET /events/poll` needs a paired device or the operator.",
    ),
    Requirement(
        id="002/events/time-ms",
        source="spec README.md, time on the wire",
        behaviour="Times on the wire are integer Unix milliseconds.",
    ),
    Requirement(
        id="002/events/heartbeat-event",
        source="seed 002 §2.3",
        behaviour="Each heartbeat and each cron run makes an event of its type.",
    ),
    Requirement(
        id="002/headers/device-id-required",
        source="seed 002 §1.1",
        behaviour="A request without `X-Device-Id` is refused with ERR_AUTH_REQUIRED.",
    ),
    Requirement(
        id="002/headers/device-token-required",
        source="seed 002 §1.1",
        behaviour="A request without `X-Device-Token` is refused with ERR_AUTH_REQUIRED.",
    ),
    Requirement(
        id="002/headers/gateway-token",
        source="spec gateway.md, X-Gateway-Token",
        behaviour="Where a gateway token is configured, `X-Gateway-Token` is required as well as the device's token.",
    ),
    Requirement(
        id="002/headers/gateway-token-optional",
        source="seed 002 §1.2",
        behaviour="Where no gateway token is configured, `X-Gateway-Token` is not asked for.",
    ),
    Requirement(
        id="002/headers/idempotency-key",
        source="seed 002 §1.2",
        behaviour="`Idempotency-Key` is required for requests with side effects.",
    ),
    Requirement(
        id="002/headers/request-id",
        source="seed 002 §1.2",
        behaviour="`X-Request-Id` is optional and is taken as the request's id.",
    ),
    Requirement(
        id="002/headers/request-id-one-thing",
        source="spec gateway.md, Every answer is JSON",
        behaviour="`X-Request-Id` and `requestId` that differ are refused with ERR_INVALID_REQUEST.",
    ),
    Requirement(
        id="002/headers/other-devices-token",
        source="seed 002 §1.1",
        behaviour="A token is refused for any device but its own.",
    ),
    Requirement(
        id="002/health/shape",
        source="seed 002 §2.1",
        behaviour="`GET /health` answers ok true, version and uptime.",
    ),
    Requirement(
        id="002/health/without-token",
        source="seed 002 §2.1",
        behaviour="`GET /health` needs no token.",
    ),
    Requirement(
        id="002/idempotency/required",
        source="spec gateway.md, Idempotency-Key",
        behaviour="A write or sign command without a key is ERR_INVALID_REQUEST.",
    ),
    Requirement(
        id="002/idempotency/not-required-read",
        source="spec gateway.md, Idempotency-Key",
        behaviour="A read command needs no key.",
    ),
    Requirement(
        id="002/idempotency/body-key",
        source="spec gateway.md, Idempotency-Key",
        behaviour="The key may be given as `idempotencyKey` in the body.",
    ),
    Requirement(
        id="002/idempotency/both-different",
        source="spec gateway.md, Idempotency-Key",
        behaviour="A header key and a body key that differ are ERR_INVALID_REQUEST.",
    ),
    Requirement(
        id="002/idempotency/replay",
        source="seed 002 §5.1",
        behaviour="The same key with the same request answers the first response.",
    ),
    Requirement(
        id="002/idempotency/replay-bytes",
        source="spec gateway.md, Idempotency-Key",
        behaviour="A replayed answer is the first one byte for byte.",
    ),
    Requirement(
        id="002/idempotency/replay-header",
        source="spec gateway.md, Idempotency-Key",
        behaviour="A replayed answer has `Idempotent-Replayed: true`.",
    ),
    Requirement(
        id="002/idempotency/replay-failures",
        source="spec gateway.md, Idempotency-Key",
        behaviour="The failure of an executed command is replayed as well.",
    ),
    Requirement(
        id="002/idempotency/conflict",
        source="seed 002 §5.1",
        behaviour="The same key with another request is ERR_IDEMPOTENCY_CONFLICT.",
    ),
    Requirement(
        id="002/idempotency/canonical-body",
        source="spec gateway.md, Idempotency-Key",
        behaviour="Bodies that differ only in the order of members or in white space are the same request.",
    ),
    Requirement(
        id="002/idempotency/request-hash",
        source="spec gateway.md, requestHash covers kind",
        behaviour="The request of a key is its kind, payload, sessionKey, route and security; requestId, trace, idempotencyKey and actor may differ.",
    ),
    Requirement(
        id="002/idempotency/per-device",
        source="spec gateway.md, Idempotency-Key",
        behaviour="The same key of another device is another key.",
    ),
    Requirement(
        id="002/idempotency/concurrent",
        source="spec gateway.md, Idempotency-Key",
        behaviour="Of equal requests at the same time one is executed and the others wait for its answer.",
    ),
    Requirement(
        id="002/idempotency/window",
        source="seed 002 §5.1",
        behaviour="A key is remembered for 600 s and may be used anew afterwards.",
    ),
    Requirement(
        id="002/idempotency/no-rate-cost",
        source="spec gateway.md, Idempotency-Key",
        behaviour="A replay costs no rate limit.",
    ),
    Requirement(
        id="002/idempotency/no-second-event",
        source="spec gateway.md, Idempotency-Key",
        behaviour="A replay makes no second event.",
    ),
    Requirement(
        id="002/idempotency/survives-restart",
        source="spec gateway.md, Idempotency-Key",
        behaviour="A key survives a restart.",
    ),
    Requirement(
        id="002/mcp/payload",
        source="seed 002 §3.4",
        behaviour="The payload is capabilityId, action, args, sessionId and context.",
    ),
    Requirement(
        id="002/mcp/round-trip",
        source="seed 002 §3.4",
        behaviour="The seed's Playwright request, with values put in, parses into its model and comes back the same.",
    ),
    Requirement(
        id="002/mcp/call",
        source="seed 002 §3.4",
        behaviour="`POST /command/mcp` calls the action as a tool of the capability's MCP server.",
    ),
    Requirement(
        id="002/mcp/stdio-and-http",
        source="spec gateway.md, mcp",
        behaviour="Upstream MCP servers are reached over stdio and over HTTP.",
    ),
    Requirement(
        id="002/mcp/session-id",
        source="spec gateway.md, Commands",
        behaviour="A `sessionId` has a session of the server of its own, which no other caller is in.",
    ),
    Requirement(
        id="002/mcp/playwright",
        source="spec gateway.md, mcp",
        behaviour="`mcp.playwright` is Playwright's server.",
    ),
    Requirement(
        id="002/mcp/browser",
        source="spec gateway.md, mcp",
        behaviour="`mcp.browser` is our own browser tasks.",
    ),
    Requirement(
        id="002/mcp/level-read-only",
        source="spec gateway.md, mcp",
        behaviour="An action that the server marks readOnlyHint is of level read.",
        superseded_by="002/mcp/level-registered",
    ),
    Requirement(
        id="002/mcp/level-default",
        source="spec gateway.md, mcp",
        behaviour="Any other action is of level write.",
        superseded_by="002/mcp/level-registered",
    ),
    Requirement(
        id="002/mcp/level-registered",
        source="spec gateway.md, mcp",
        behaviour="A tool of an MCP server has the level registered for it, else for its server, else write; `destructiveHint: true` or `readOnlyHint: false` raises it to write, and nothing that a server says lowers it.",
    ),
    Requirement(
        id="002/mcp/definitions-pinned",
        source="spec gateway.md, mcp",
        behaviour="A tool's definition is pinned when it is first listed; once its server changes it, the tool is not offered and its calls are refused, until the operator accepts the change.",
    ),
    Requirement(
        id="002/mcp/sandboxed",
        source="spec gateway.md, mcp",
        behaviour="The program of an MCP server runs in the sandbox, with its own mounts, egress and environment, unless `isolation: none` is registered, which is shown.",
    ),
    Requirement(
        id="002/mcp/sandbox-missing",
        source="spec gateway.md, mcp",
        behaviour="A program that cannot be isolated as it is registered is offline at once, with a reason that says what to change.",
    ),
    Requirement(
        id="002/mcp/unknown-capability",
        source="spec gateway.md, A declared",
        behaviour="An unknown capabilityId is refused with an error of the envelope.",
    ),
    Requirement(
        id="002/mcp/server-fails",
        source="seed 002 §3.4",
        behaviour="An MCP server that fails, hangs or answers garbage gives an error in the envelope.",
    ),
    Requirement(
        id="002/operator/targets-put",
        source="spec gateway.md, Operator's routes",
        behaviour="`PUT /execution-targets/{targetId}` makes or changes a target.",
    ),
    Requirement(
        id="002/operator/targets-read",
        source="spec gateway.md, Operator's routes",
        behaviour="`GET /execution-targets` and `GET /execution-targets/{targetId}` show targets without their tokens.",
    ),
    Requirement(
        id="002/operator/targets-delete",
        source="spec gateway.md, Operator's routes",
        behaviour="`DELETE /execution-targets/{targetId}` removes a target.",
    ),
    Requirement(
        id="002/operator/audit-query",
        source="spec gateway.md, Operator's routes",
        behaviour="`GET /audit/query` takes the parameters of audit.query and answers items and nextCursor.",
    ),
    Requirement(
        id="002/operator/runs",
        source="spec gateway.md, Operator's routes",
        behaviour="`GET /runs` lists runs.",
    ),
    Requirement(
        id="002/operator/runs-cancel",
        source="spec gateway.md, Operator's routes",
        behaviour="`GET /runs/{runId}` shows a run; `POST /runs/{runId}/cancel` ends an open run once, with the reason in the audit.",
    ),
    Requirement(
        id="002/operator/approvals",
        source="spec gateway.md, Operator's routes",
        behaviour="`GET /approvals` lists approvals.",
    ),
    Requirement(
        id="002/operator/approvals-decide",
        source="spec gateway.md, Operator's routes",
        behaviour="`POST /approvals/{id}/decide` settles an approval.",
    ),
    Requirement(
        id="002/operator/policy-read",
        source="spec gateway.md, Operator's routes",
        behaviour="`GET /policy` shows the active policy.",
    ),
    Requirement(
        id="002/operator/policy-write",
        source="spec gateway.md, Operator's routes",
        behaviour="`PUT /policy` activates a policy that is sound and refuses one that is not.",
    ),
    Requirement(
        id="002/operator/policy-simulate",
        source="spec gateway.md, Operator's routes",
        behaviour="`POST /policy/simulate` says which past calls a policy would have decided otherwise.",
    ),
    Requirement(
        id="002/operator/operator-only",
        source="spec gateway.md, Operator's routes",
        behaviour="Each of the operator's routes is refused without the operator's token.",
    ),
    Requirement(
        id="002/operator/target-tools",
        source="spec gateway.md, Operator's routes",
        behaviour="bash.exec, python.exec, file.* and http.request run on the chosen execution target, whichever door the call came in by.",
    ),
    Requirement(
        id="002/operator/default-port",
        source="spec README.md, Default ports",
        behaviour="The gateway listens on 127.0.0.1:8787 unless told otherwise.",
    ),
    Requirement(
        id="002/pairing/first-contact-pending",
        source="spec gateway.md, First contact",
        behaviour="A first contact with X-Device-Id and no token puts the device in pending.",
    ),
    Requirement(
        id="002/pairing/first-contact-answer",
        source="spec gateway.md, First contact",
        behaviour="A first contact is answered 401 ERR_AUTH_REQUIRED with `data.pairing` `pending` and a short code.",
    ),
    Requirement(
        id="002/pairing/pending-list",
        source="seed 002 §2.4",
        behaviour="`GET /pairing/pending` lists the devices that wait.",
    ),
    Requirement(
        id="002/pairing/pending-facts",
        source="spec gateway.md, First contact",
        behaviour="A pending device is shown with time, ip, user agent and code.",
    ),
    Requirement(
        id="002/pairing/pending-once",
        source="spec gateway.md, First contact",
        behaviour="A device that asks again is still pending once and has the same code.",
    ),
    Requirement(
        id="002/pairing/pending-expires",
        source="spec gateway.md, First contact",
        behaviour="A pending request expires after 10 min.",
    ),
    Requirement(
        id="002/pairing/pending-limited",
        source="spec gateway.md, First contact",
        behaviour="Pending requests are limited in number and by address.",
    ),
    Requirement(
        id="002/pairing/approve",
        source="seed 002 §2.4",
        behaviour="`POST /pairing/approve` pairs a pending device.",
    ),
    Requirement(
        id="002/pairing/approve-token-body",
        source="seed 002 §2.4",
        behaviour="approve answers the device's token in the body.",
    ),
    Requirement(
        id="002/pairing/approve-token-header",
        source="seed 002 §2.4",
        behaviour="approve answers the device's token as `X-Device-Token`.",
    ),
    Requirement(
        id="002/pairing/approve-rotates",
        source="spec gateway.md, GET /pairing/pending",
        behaviour="Approving again makes a new token and the old one is refused.",
    ),
    Requirement(
        id="002/pairing/approve-scope",
        source="spec gateway.md, GET /pairing/pending",
        behaviour="approve takes a scope of tools, system, mcp and agent.",
    ),
    Requirement(
        id="002/pairing/approve-scope-default",
        source="spec gateway.md, GET /pairing/pending",
        behaviour="Without a scope the device may use tools at level read.",
    ),
    Requirement(
        id="002/pairing/approve-unknown",
        source="spec gateway.md, GET /pairing/pending",
        behaviour="Approving a device that never asked is refused.",
    ),
    Requirement(
        id="002/pairing/revoke",
        source="seed 002 §2.4",
        behaviour="`POST /pairing/revoke` makes the device's token useless at once.",
    ),
    Requirement(
        id="002/pairing/revoke-code",
        source="spec gateway.md, ERR_AUTH_REQUIRED",
        behaviour="A revoked token is answered with ERR_INVALID_TOKEN.",
    ),
    Requirement(
        id="002/pairing/revoke-streams",
        source="spec gateway.md, GET /pairing/pending",
        behaviour="Revoking cuts the device's open streams.",
    ),
    Requirement(
        id="002/pairing/revoke-runs",
        source="spec gateway.md, GET /pairing/pending",
        behaviour="Revoking cancels the runs of the device's agent commands that have not ended.",
    ),
    Requirement(
        id="002/pairing/revoke-unknown",
        source="spec gateway.md, GET /pairing/pending",
        behaviour="Revoking an unknown device is refused.",
    ),
    Requirement(
        id="002/pairing/operator-only",
        source="spec gateway.md, GET /pairing/pending",
        behaviour="The three pairing routes need the operator's token.",
    ),
    Requirement(
        id="002/pairing/token-random",
        source="spec gateway.md, GET /pairing/pending",
        behaviour="A device token is 32 random bytes.",
    ),
    Requirement(
        id="002/pairing/token-hashed",
        source="spec gateway.md, GET /pairing/pending",
        behaviour="A device token is stored as a hash only.",
    ),
    Requirement(
        id="002/pairing/token-constant-time",
        source="spec gateway.md, GET /pairing/pending",
        behaviour="Tokens are compared in constant time.",
    ),
    Requirement(
        id="002/pairing/auto-approve-off",
        source="spec gateway.md, X-Gateway-Token",
        behaviour="Local auto-approve exists and is off unless turned on.",
    ),
    Requirement(
        id="002/pairing/survives-restart",
        source="seed 002 §2.4",
        behaviour="Pairings survive a restart.",
    ),
    Requirement(
        id="002/pairing/operator-token-made",
        source="spec gateway.md, The operator's token",
        behaviour="The operator's token is made on first start and shown once.",
        divergence="Shown at a terminal only; elsewhere the path of its file is.",
    ),
    Requirement(
        id="002/pairing/operator-always",
        source="spec gateway.md, The operator's token",
        behaviour="No admin route is ever open without the operator's token.",
    ),
    Requirement(
        id="002/pairing/scope-enforced",
        source="spec gateway.md, GET /pairing/pending",
        behaviour="A command outside the device's scope is refused with ERR_PERMISSION_DENIED.",
    ),
    Requirement(
        id="002/rate-limits/default",
        source="spec gateway.md, 60/min",
        behaviour="A device may make 60 commands a minute unless told otherwise.",
    ),
    Requirement(
        id="002/rate-limits/per-device",
        source="spec gateway.md, 60/min",
        behaviour="One device's commands cost another device nothing.",
    ),
    Requirement(
        id="002/rate-limits/per-capability",
        source="spec gateway.md, 60/min",
        behaviour="A capability's limit counts apart from the device's.",
    ),
    Requirement(
        id="002/rate-limits/limit-header",
        source="seed 002 §5.3",
        behaviour="Every command answer has `X-RateLimit-Limit`.",
    ),
    Requirement(
        id="002/rate-limits/remaining-header",
        source="seed 002 §5.3",
        behaviour="Every command answer has `X-RateLimit-Remaining` and it falls with each command.",
    ),
    Requirement(
        id="002/rate-limits/reset-header",
        source="spec gateway.md, 60/min",
        behaviour="Every command answer has `X-RateLimit-Reset`.",
    ),
    Requirement(
        id="002/rate-limits/retry-after",
        source="seed 002 §5.3",
        behaviour="A 429 answer has `Retry-After`.",
    ),
    Requirement(
        id="002/rate-limits/retry-after-minimum",
        source="spec gateway.md, 60/min",
        behaviour="`Retry-After` is at least 1, and a command after that time is let through.",
    ),
    Requirement(
        id="002/status/shape",
        source="seed 002 §2.2",
        behaviour="`GET /status` answers version, health, devices, running, heartbeat and cron.",
    ),
    Requirement(
        id="002/status/running-kinds",
        source="seed 002 §2.2",
        behaviour="`running` has the lists agent, tool and mcp.",
    ),
    Requirement(
        id="002/status/running-real",
        source="spec gateway.md, /status",
        behaviour="`running` shows what is in flight, and no longer shows it afterwards.",
    ),
    Requirement(
        id="002/status/heartbeat-null",
        source="spec gateway.md, /status",
        behaviour="`heartbeat.lastAt` is null before the first heartbeat and its time in ms afterwards.",
    ),
    Requirement(
        id="002/status/cron-null",
        source="spec gateway.md, /status",
        behaviour="`cron.lastAt` is null before the first run of a cron entry and its time in ms afterwards.",
    ),
    Requirement(
        id="002/status/needs-token",
        source="seed 002 §2.2",
        behaviour="`GET /status` needs a paired device or the operator.",
    ),
    Requirement(
        id="002/status/devices-without-secrets",
        source="seed 002 §2.2",
        behaviour="The devices in status are shown without their tokens.",
    ),
    Requirement(
        id="002/system/payload",
        source="seed 002 §3.3",
        behaviour="The payload is action, args, sessionId, cwd and env.",
    ),
    Requirement(
        id="002/system/round-trip",
        source="seed 002 §3.3",
        behaviour="The seed's two system requests, with values put in, parse into their model and come back the same.",
    ),
    Requirement(
        id="002/system/exec-level",
        source="seed 002 §3.3",
        behaviour="exec is of level write.",
    ),
    Requirement(
        id="002/system/web-fetch-level",
        source="seed 002 §3.3",
        behaviour="web.fetch is of level read.",
    ),
    Requirement(
        id="002/system/web-search-level",
        source="seed 002 §3.3",
        behaviour="web.search is of level read.",
    ),
    Requirement(
        id="002/system/capabilities",
        source="seed 002 §4.2",
        behaviour="exec, web.fetch and web.search are the system's capabilities.",
    ),
    Requirement(
        id="002/system/unknown-action",
        source="seed 002 §4.2",
        behaviour="Any other action is refused.",
    ),
    Requirement(
        id="002/system/exec-cmd",
        source="spec gateway.md, exec",
        behaviour="`{cmd}` is split as a shell would and run without one.",
    ),
    Requirement(
        id="002/system/exec-command-params",
        source="spec gateway.md, exec",
        behaviour="`{command, params[]}` is run as it is.",
    ),
    Requirement(
        id="002/system/exec-allow-list",
        source="spec gateway.md, exec",
        behaviour="A command that the policy does not list is refused.",
    ),
    Requirement(
        id="002/system/exec-cwd",
        source="spec gateway.md, exec",
        behaviour="A cwd outside the workspace is refused, symlinks resolved.",
    ),
    Requirement(
        id="002/system/exec-cwd-400",
        source="spec gateway.md, durationMs",
        behaviour="A cwd outside the workspace is 400 ERR_INVALID_REQUEST.",
    ),
    Requirement(
        id="002/system/exec-env",
        source="spec gateway.md, exec",
        behaviour="Only listed environment variables are passed on, and never a secret.",
    ),
    Requirement(
        id="002/system/exec-timeout",
        source="spec gateway.md, exec",
        behaviour="A command is stopped after 60 s and answered with timedOut.",
    ),
    Requirement(
        id="002/system/exec-group-killed",
        source="spec gateway.md, exec",
        behaviour="When a command is stopped its whole process group is killed.",
    ),
    Requirement(
        id="002/system/exec-output-cap",
        source="spec gateway.md, exec",
        behaviour="Output beyond 256 KiB is cut and answered with truncated.",
    ),
    Requirement(
        id="002/system/exec-answer",
        source="spec gateway.md, exec",
        behaviour="exec answers exitCode, signal, stdout, stderr, truncated, timedOut and durationMs.",
    ),
    Requirement(
        id="002/system/fetch-schemes",
        source="spec gateway.md, web.fetch",
        behaviour="web.fetch takes http and https only.",
    ),
    Requirement(
        id="002/system/fetch-methods",
        source="spec gateway.md, web.fetch",
        behaviour="web.fetch takes GET, POST and HEAD only.",
    ),
    Requirement(
        id="002/system/fetch-private",
        source="spec gateway.md, web.fetch",
        behaviour="Private, loopback, link-local and metadata addresses are refused after DNS.",
    ),
    Requirement(
        id="002/system/fetch-numeric",
        source="spec gateway.md, web.fetch",
        behaviour="Numeric and IPv6-mapped forms of such addresses are refused.",
    ),
    Requirement(
        id="002/system/fetch-pinned",
        source="spec gateway.md, web.fetch",
        behaviour="The address that was checked is the one connected to.",
    ),
    Requirement(
        id="002/system/fetch-redirects",
        source="spec gateway.md, web.fetch",
        behaviour="Every redirect is checked again.",
    ),
    Requirement(
        id="002/system/fetch-body-secrets",
        source="spec gateway.md, web.fetch",
        behaviour="A POST body that holds a secret is refused.",
    ),
    Requirement(
        id="002/system/fetch-timeout",
        source="spec gateway.md, web.fetch",
        behaviour="web.fetch ends after 15 s.",
    ),
    Requirement(
        id="002/system/fetch-cap",
        source="spec gateway.md, web.fetch",
        behaviour="A body beyond 512 KiB is cut and answered with truncated.",
    ),
    Requirement(
        id="002/system/fetch-answer",
        source="spec gateway.md, web.fetch",
        behaviour="web.fetch answers url, status, headers, bodyText, truncated and durationMs.",
    ),
    Requirement(
        id="002/system/search-provider",
        source="spec gateway.md, web.fetch",
        behaviour="web.search asks the provider that the operator configured.",
    ),
    Requirement(
        id="002/system/search-none",
        source="spec gateway.md, web.fetch",
        behaviour="web.search without a provider is ERR_NOT_IMPLEMENTED.",
    ),
    Requirement(
        id="002/tokens/cli",
        source="spec gateway.md, /tool/run takes credentials",
        behaviour="`toolgate token` makes tokens with a kind, a scope and an expiry, lists and revokes them, and shows the keys that Toolgate made.",
    ),
    Requirement(
        id="002/tokens/doors",
        source="spec gateway.md, /tool/run takes credentials",
        behaviour="Each listener takes its own credentials; a wrong, expired, revoked or other one opens nothing.",
    ),
    Requirement(
        id="002/tokens/expire",
        source="spec gateway.md, /tool/run takes credentials",
        behaviour="A token that expires ends the connections that it opened.",
    ),
    Requirement(
        id="002/tokens/named",
        source="spec gateway.md, /tool/run takes credentials",
        behaviour="The policy's `for`, the audit and the evidence name the token of a call.",
    ),
    Requirement(
        id="002/tokens/operator-not-for-mcp",
        source="spec gateway.md, The operator's token",
        behaviour="`/mcp` refuses the operator's token and names the command that makes a proper one.",
    ),
    Requirement(
        id="002/tokens/own-command",
        source="spec gateway.md, Scopes gain",
        behaviour="A device or service decides neither its own command nor what its agent asks for.",
    ),
    Requirement(
        id="002/tokens/revoked-at-once",
        source="spec gateway.md, /tool/run takes credentials",
        behaviour="Revoking a token ends at once the connections that it opened.",
    ),
    Requirement(
        id="002/tool/calls",
        source="spec gateway.md, POST /command/agent",
        behaviour="`POST /command/tool` takes a list of toolCalls with id, name and arguments.",
    ),
    Requirement(
        id="002/tool/single",
        source="spec gateway.md, POST /command/agent",
        behaviour="`POST /command/tool` takes one call as name and args.",
    ),
    Requirement(
        id="002/tool/results",
        source="spec gateway.md, POST /command/agent",
        behaviour="The answer has one result per call with id, name, success and data or error.",
    ),
    Requirement(
        id="002/tool/partial",
        source="seed 002 §3.2",
        behaviour="A call that fails does not keep the others' results from the answer.",
    ),
    Requirement(
        id="002/tool/denied",
        source="spec README.md, refusal by policy",
        behaviour="A tool call that the policy denies is answered with ERR_PERMISSION_DENIED.",
    ),
    Requirement(
        id="002/v2/connect-first",
        source="seed 002 §6",
        behaviour="The first frame on `/v2/ws` is `connect`.",
    ),
    Requirement(
        id="002/v2/connect-members",
        source="seed 002 §6",
        behaviour="`connect` has deviceId, clientType, capabilities, auth and challenge.",
    ),
    Requirement(
        id="002/v2/connect-required",
        source="spec gateway.md, connect first",
        behaviour="Any frame before `connect` is refused.",
    ),
    Requirement(
        id="002/v2/challenge-signature",
        source="spec gateway.md, connect first",
        behaviour="The server's nonce signed by the device's Ed25519 key is accepted.",
    ),
    Requirement(
        id="002/v2/challenge-token",
        source="spec gateway.md, connect first",
        behaviour="The server's nonce answered with the device's token is accepted.",
    ),
    Requirement(
        id="002/v2/challenge-wrong",
        source="spec gateway.md, connect first",
        behaviour="A wrong signature, a wrong token or another nonce is refused and the connection closed.",
    ),
    Requirement(
        id="002/v2/frames",
        source="seed 002 §6",
        behaviour="After `connect` the frames are `req`, `res` and `event`.",
    ),
    Requirement(
        id="002/v2/every-command",
        source="spec gateway.md, connect first",
        behaviour="Every v1 command can be made by a `req`.",
    ),
    Requirement(
        id="002/v2/queries",
        source="spec gateway.md, connect first",
        behaviour="audit.query, execution targets and pairing can be used by a `req`.",
    ),
    Requirement(
        id="002/v2/events-pushed",
        source="spec gateway.md, connect first",
        behaviour="Events are pushed instead of polled.",
    ),
    Requirement(
        id="002/v2/same-rules",
        source="spec gateway.md, connect first",
        behaviour="A `req` meets the same rights, idempotency and rate limits as the HTTP command.",
    ),
)
