"""What the ingress contract (seed 001) asks for, of ingress and orchestrator. Only data."""

from typing import Final

from tests.conformance.requirement import Requirement

REQUIREMENTS: Final[tuple[Requirement, ...]] = (
    Requirement(
        id="001/agents/built-in",
        source="spec ingress.md, Agents",
        behaviour="Built-in agents are invoked by their names.",
    ),
    Requirement(
        id="001/agents/external",
        source="spec ingress.md, Agents",
        behaviour="An external agent registered by URL is invoked with `POST {endpoint}/invoke`.",
    ),
    Requirement(
        id="001/agents/external-events",
        source="spec ingress.md, Agents",
        behaviour="delta, state, done and error of an external agent's SSE become the run's events.",
    ),
    Requirement(
        id="001/agents/external-fails",
        source="spec ingress.md, Agents",
        behaviour="An external agent that fails, hangs or breaks off ends its run with an error.",
    ),
    Requirement(
        id="001/agents/timeout",
        source="spec ingress.md, Tool time-out",
        behaviour="An agent that has not finished after 300 s is ended as FAILED.",
    ),
    Requirement(
        id="001/approvals/required-delivered",
        source="seed 001, type ApprovalRequiredEvent",
        behaviour="A call that needs approval is announced to the session with `approval_required`.",
    ),
    Requirement(
        id="001/approvals/seen-whole",
        source="spec ingress.md, Codes",
        behaviour="An approver sees every character of a call but known secrets, which are named, and "
        "token-shaped words, which are counted; the evidence keeps what was shown.",
    ),
    Requirement(
        id="001/approvals/hidden-arguments",
        source="spec ingress.md, Codes",
        behaviour="A call with hidden characters is approved only after the operator has revealed them; until "
        "then an approval is refused with `detail.reason` `hidden_arguments`, and stays open.",
    ),
    Requirement(
        id="001/approvals/approve",
        source="spec ingress.md, approval_decision",
        behaviour="An approved call is dispatched.",
    ),
    Requirement(
        id="001/approvals/reject",
        source="spec ingress.md, approval_decision",
        behaviour="A rejected call is not run.",
    ),
    Requirement(
        id="001/approvals/rejected-error",
        source="spec ingress.md, Tool time-out",
        behaviour="A rejected approval reaches the agent as error `rejected`.",
    ),
    Requirement(
        id="001/approvals/any-case",
        source="spec ingress.md, approval_decision",
        behaviour="`approve` and `reject` are accepted in any case.",
    ),
    Requirement(
        id="001/approvals/other-decision",
        source="spec ingress.md, approval_decision",
        behaviour="Any other decision is answered with `invalid_message`.",
    ),
    Requirement(
        id="001/approvals/reason-optional",
        source="seed 001, approval_decision",
        behaviour="`reason` may be left out and is kept where given.",
    ),
    Requirement(
        id="001/approvals/state-event",
        source="spec ingress.md, approval_decision",
        behaviour="An accepted decision shows as a `state` event.",
    ),
    Requirement(
        id="001/approvals/expires",
        source="spec ingress.md, Tool time-out",
        behaviour="An approval without a decision for 10 min is EXPIRED and the agent gets `approval_timeout`.",
    ),
    Requirement(
        id="001/approvals/decide-twice",
        source="spec ingress.md, Every move",
        behaviour="A second decision changes nothing and is told what was decided.",
    ),
    Requirement(
        id="001/approvals/many-deciders",
        source="spec ingress.md, Every move",
        behaviour="Of many decisions at once one wins and all are told the same.",
    ),
    Requirement(
        id="001/approvals/not-yours",
        source="spec ingress.md, cancel_run",
        behaviour="A decision on an approval of another session is answered with an error and changes nothing.",
    ),
    Requirement(
        id="001/approvals/decision-confirmed",
        source="spec ingress.md, Confirmations",
        behaviour="An accepted `approval_decision` is answered with `state` and `detail {approval_id, decision}`.",
    ),
    Requirement(
        id="001/approvals/who-may",
        source="spec ingress.md, Approvals over the WebSocket",
        behaviour="A connection with API_KEY or a user's own key decides what its session's agents ask for, a named token with the scope `approve` unless it started the run; others get `may_not_approve`. The record names the principal.",
    ),
    Requirement(
        id="001/cancel/stops-run",
        source="seed 001, cancel_run",
        behaviour="`cancel_run` ends the run as CANCELLED.",
    ),
    Requirement(
        id="001/cancel/twice-is-once",
        source="spec ingress.md, cancel_run",
        behaviour="Cancelling twice has the effect of once.",
    ),
    Requirement(
        id="001/cancel/not-yours",
        source="spec ingress.md, cancel_run",
        behaviour="Cancelling a run of another session is answered with an error and changes nothing.",
    ),
    Requirement(
        id="001/cancel/unknown-run",
        source="spec ingress.md, cancel_run",
        behaviour="Cancelling a run that does not exist is answered with an error.",
    ),
    Requirement(
        id="001/cancel/no-delta-after",
        source="spec ingress.md, Cancelling really",
        behaviour="Not one delta follows CANCELLED.",
    ),
    Requirement(
        id="001/cancel/stops-agent",
        source="spec ingress.md, Cancelling really",
        behaviour="Cancelling stops the agent and its stream.",
    ),
    Requirement(
        id="001/cancel/stops-tool",
        source="spec ingress.md, Cancelling really",
        behaviour="Cancelling stops the tool that is running.",
    ),
    Requirement(
        id="001/cancel/finished-run",
        source="spec ingress.md, Every move",
        behaviour="Cancelling a finished run leaves its end as it was.",
    ),
    Requirement(
        id="001/cancel/while-waiting",
        source="spec ingress.md, Cancelling really",
        behaviour="A run that waits for a tool or an approval can be cancelled.",
    ),
    Requirement(
        id="001/cancel/spelling",
        source="spec README.md, cancelled is spelt",
        behaviour="The state is spelt CANCELLED.",
    ),
    Requirement(
        id="001/cancel/confirmed",
        source="spec ingress.md, Confirmations",
        behaviour="`cancel_run` is answered with `state` and the run's state, also for a run that had ended.",
    ),
    Requirement(
        id="001/cancel/ends-with-done",
        source="spec ingress.md, Codes",
        behaviour="A cancelled run ends with `state` CANCELLED and `done`, without an `error`.",
    ),
    Requirement(
        id="001/codes/invalid-message",
        source="seed 001, invalid_message",
        behaviour="`invalid_message` is sent for a message of the wrong format.",
    ),
    Requirement(
        id="001/codes/auth-failed",
        source="seed 001, auth_failed",
        behaviour="`auth_failed` is sent where authentication fails.",
    ),
    Requirement(
        id="001/codes/session-not-found",
        source="seed 001, session_not_found",
        behaviour="`session_not_found` is sent for a session that does not exist.",
    ),
    Requirement(
        id="001/codes/client-offline",
        source="seed 001, client_offline",
        behaviour="`client_offline` is given where the client is not connected.",
    ),
    Requirement(
        id="001/codes/orchestrator-error",
        source="seed 001, orchestrator_error",
        behaviour="`orchestrator_error` is sent for an error of the orchestrator and may be retried.",
    ),
    Requirement(
        id="001/codes/internal-error",
        source="seed 001, internal_error",
        behaviour="`internal_error` is sent for an unexpected failure and shows nothing of its inside.",
    ),
    Requirement(
        id="001/codes/uniform",
        source="seed 001, type ErrorEvent",
        behaviour="Every error has the same form with a code of the table and a message.",
    ),
    Requirement(
        id="001/codes/six-only",
        source="seed 001, 错误码定义",
        behaviour="`error.code` is one of the six codes of the table; `detail.reason` says more.",
    ),
    Requirement(
        id="001/compose/seed-block",
        source="seed 001, Docker Compose 配置",
        behaviour="The seed's compose block works as it stands with our image: its ports, its environment and its health check by curl.",
    ),
    Requirement(
        id="001/compose/up-beside-an-orchestrator",
        source="spec ingress.md, Compose",
        behaviour="With ORCHESTRATOR_URL `up` uses that orchestrator, starts none of its own and says so in its ready line.",
    ),
    Requirement(
        id="001/connection/created",
        source="seed 001, 连接生命周期",
        behaviour="A new connection is in state CREATED.",
    ),
    Requirement(
        id="001/connection/authenticating",
        source="seed 001, 连接生命周期",
        behaviour="`hello` moves a connection to AUTHENTICATING.",
    ),
    Requirement(
        id="001/connection/active",
        source="seed 001, 连接生命周期",
        behaviour="A connection whose key was accepted is ACTIVE.",
    ),
    Requirement(
        id="001/connection/closed",
        source="seed 001, 连接生命周期",
        behaviour="A connection that ends or times out is CLOSED and no longer registered.",
    ),
    Requirement(
        id="001/connection/state-names",
        source="seed 001, 连接状态",
        behaviour="The four states are spelt CREATED, AUTHENTICATING, ACTIVE and CLOSED.",
    ),
    Requirement(
        id="001/connection/ping",
        source="seed 001, 心跳机制",
        behaviour="The server sends a WebSocket ping every 30 s.",
    ),
    Requirement(
        id="001/connection/pong-wait",
        source="seed 001, 心跳机制",
        behaviour="A client that answers no ping for 60 s is closed.",
    ),
    Requirement(
        id="001/connection/write-wait",
        source="seed 001, 心跳机制",
        behaviour="A write that takes more than 10 s closes the connection.",
    ),
    Requirement(
        id="001/connection/alive-by-pong",
        source="seed 001, 客户端需响应",
        behaviour="A client that answers each ping is kept for as long as it likes.",
    ),
    Requirement(
        id="001/connection/slow-consumer-closed",
        source="spec ingress.md, Order is kept",
        behaviour="A consumer whose queue is full at 256 messages or 4 MiB is closed with 4408.",
    ),
    Requirement(
        id="001/connection/slow-consumer-alone",
        source="spec ingress.md, Order is kept",
        behaviour="A slow consumer delays no other connection.",
    ),
    Requirement(
        id="001/connection/slow-consumer-returns",
        source="spec ingress.md, Order is kept",
        behaviour="A consumer that was closed for slowness reconnects and gets what it missed.",
    ),
    Requirement(
        id="001/connection/half-open",
        source="seed 001, 心跳机制",
        behaviour="A peer that vanished without closing is found out by its missing pong.",
    ),
    Requirement(
        id="001/credentials/key-made",
        source="spec ingress.md, Credentials, per listener",
        behaviour="An unset API_KEY is made on every host and kept in the home for its owner alone; `toolgate up` prints its path, never the key.",
    ),
    Requirement(
        id="001/credentials/any-key-loopback-only",
        source="spec ingress.md, Credentials, per listener",
        behaviour="API_KEY=none accepts any key, on loopback only, and then no approval is decided over the WebSocket.",
    ),
    Requirement(
        id="001/credentials/internal-token",
        source="spec ingress.md, Credentials, per listener",
        behaviour="8081 and 8091 need the internal token as a bearer; unset, it is made and kept in the home.",
        divergence="The seed has no field for it: a foreign ingress must be given it.",
    ),
    Requirement(
        id="001/credentials/foreign-orchestrator",
        source="spec ingress.md, Credentials, per listener",
        behaviour="An ingress with ORCHESTRATOR_URL and no internal token takes pushes without one, and the log and `/health` say so; our orchestrator answers it 401, and its log says to set INTERNAL_TOKEN on both.",
    ),
    Requirement(
        id="001/devices/every-event-to-all",
        source="spec ingress.md, All devices",
        behaviour="All devices of a session get every event.",
    ),
    Requirement(
        id="001/devices/tool-request-to-all",
        source="spec ingress.md, All devices",
        behaviour="A tool_request reaches all devices and the first result wins.",
    ),
    Requirement(
        id="001/devices/others-learn",
        source="spec ingress.md, Every move",
        behaviour="The other devices are told when a tool call or an approval was settled.",
    ),
    Requirement(
        id="001/devices/one-leaves",
        source="spec ingress.md, All devices",
        behaviour="When one device leaves, the others go on undisturbed.",
    ),
    Requirement(
        id="001/devices/sessions-apart",
        source="seed 001, Hub 设计",
        behaviour="No event reaches a connection of another session.",
    ),
    Requirement(
        id="001/dispatch/invoke-accept",
        source="seed 001, Invoke Agent 实现",
        behaviour="The ingress invokes with `Accept: text/event-stream`.",
    ),
    Requirement(
        id="001/dispatch/invoke-body",
        source="seed 001, Invoke Agent 实现",
        behaviour="The ingress sends agent_id, session_id and message to `/internal/invoke`.",
    ),
    Requirement(
        id="001/dispatch/understands-both",
        source="spec ingress.md, POST /internal/invoke",
        behaviour="The ingress understands the SSE answer and the JSON answer of any orchestrator.",
    ),
    Requirement(
        id="001/dispatch/sse-event-names",
        source="spec ingress.md, SSE is parsed",
        behaviour="SSE event names are understood.",
    ),
    Requirement(
        id="001/dispatch/sse-multi-line",
        source="spec ingress.md, SSE is parsed",
        behaviour="Several data lines of one SSE event are joined.",
    ),
    Requirement(
        id="001/dispatch/sse-comments",
        source="spec ingress.md, SSE is parsed",
        behaviour="SSE comments are skipped.",
    ),
    Requirement(
        id="001/dispatch/sse-crlf",
        source="spec ingress.md, SSE is parsed",
        behaviour="SSE lines may end in CR LF, LF or CR.",
    ),
    Requirement(
        id="001/dispatch/sse-no-last-blank",
        source="spec ingress.md, SSE is parsed",
        behaviour="A last SSE event without a blank line after it is taken.",
    ),
    Requirement(
        id="001/dispatch/sse-split-anywhere",
        source="spec ingress.md, SSE is parsed",
        behaviour="SSE that arrives in pieces cut anywhere gives the same events.",
    ),
    Requirement(
        id="001/dispatch/run-to-session",
        source="seed 001, run_id ↔ session_id 映射",
        behaviour="A run is known by its session, so that an event can be sent by run_id.",
    ),
    Requirement(
        id="001/dispatch/submit-tool-result",
        source="seed 001, tool_result",
        behaviour="A `tool_result` is submitted to `/internal/tool_calls/{id}/submit`.",
    ),
    Requirement(
        id="001/dispatch/submit-decision",
        source="seed 001, approval_decision",
        behaviour="An `approval_decision` is sent to `/internal/approvals/{id}/decide`.",
    ),
    Requirement(
        id="001/dispatch/submit-cancel",
        source="seed 001, cancel_run",
        behaviour="A `cancel_run` is sent to `/internal/runs/{id}/cancel`.",
    ),
    Requirement(
        id="001/dispatch/confirmation-or-error",
        source="seed 001, 返回确认或错误",
        behaviour="A tool_result and an approval_decision are answered with a confirmation or an error, a cancel_run with a confirmation.",
    ),
    Requirement(
        id="001/dispatch/orchestrator-down",
        source="seed 001, orchestrator_error",
        behaviour="An orchestrator that cannot be reached gives the client `orchestrator_error`.",
    ),
    Requirement(
        id="001/dispatch/orchestrator-500",
        source="seed 001, orchestrator_error",
        behaviour="An orchestrator that answers an error status gives the client `orchestrator_error`.",
    ),
    Requirement(
        id="001/dispatch/orchestrator-garbage",
        source="seed 001, orchestrator_error",
        behaviour="An orchestrator that answers garbage gives the client `orchestrator_error`.",
    ),
    Requirement(
        id="001/dispatch/orchestrator-dies-in-stream",
        source="seed 001, orchestrator_error",
        behaviour="A stream that breaks before its end gives the client one final `orchestrator_error`.",
    ),
    Requirement(
        id="001/dispatch/in-process-and-http",
        source="seed 001, type OrchestratorClient",
        behaviour="The same suite passes with the orchestrator in the same process and over HTTP.",
    ),
    Requirement(
        id="001/dispatch/submit-body",
        source="spec ingress.md, Submit body",
        behaviour="The submit body is `{run_id, tool_call_id, ok, status, result?, error?}` with a string as error; either of `ok` and `status` suffices when received.",
    ),
    Requirement(
        id="001/dispatch/refusal-text",
        source="spec ingress.md, Codes",
        behaviour="Any answer of an orchestrator that is not 2xx is `orchestrator_error` with its own text.",
    ),
    Requirement(
        id="001/dispatch/refusal-not-settled",
        source="spec ingress.md, Codes",
        behaviour="A result or decision that the orchestrator did not take can be sent again.",
    ),
    Requirement(
        id="001/dispatch/slow-first-event",
        source="spec ingress.md, Foreign streams",
        behaviour="The first event of a stream may take as long as an agent; other messages of the client do not wait for it.",
    ),
    Requirement(
        id="001/dispatch/immediate-answer",
        source="spec ingress.md, Foreign streams",
        behaviour="A first event without `type` that has `run_id` starts the run.",
    ),
    Requirement(
        id="001/dispatch/bad-line-skipped",
        source="spec ingress.md, Foreign streams",
        behaviour="A line that is no JSON is skipped, logged and counted.",
    ),
    Requirement(
        id="001/dispatch/ts-kept",
        source="spec ingress.md, Foreign streams",
        behaviour="`ts` of pushed and streamed events is kept; a missing one is filled in.",
    ),
    Requirement(
        id="001/durability/invoke-survives",
        source="spec ingress.md, A restart loses no run",
        behaviour="An acknowledged invoke survives kill -9.",
    ),
    Requirement(
        id="001/durability/result-survives",
        source="spec ingress.md, A restart loses no run",
        behaviour="An acknowledged tool result survives kill -9.",
    ),
    Requirement(
        id="001/durability/decision-survives",
        source="spec ingress.md, A restart loses no run",
        behaviour="An acknowledged decision survives kill -9.",
    ),
    Requirement(
        id="001/durability/waiting-goes-on",
        source="spec ingress.md, A restart loses no run",
        behaviour="A waiting run goes on waiting after a restart.",
    ),
    Requirement(
        id="001/durability/running-resumes",
        source="spec ingress.md, A restart loses no run",
        behaviour="A running run resumes from its last completed step after a restart.",
    ),
    Requirement(
        id="001/durability/tool-not-twice",
        source="spec ingress.md, A restart loses no run",
        behaviour="A tool that had side effects is not run twice across a restart.",
    ),
    Requirement(
        id="001/durability/seq-survives",
        source="spec ingress.md, Every outgoing message",
        behaviour="`seq` goes on rising across a restart.",
    ),
    Requirement(
        id="001/durability/request-id-24h",
        source="spec README.md, idempotency",
        behaviour="A request_id is remembered for 24 h and across a restart.",
    ),
    Requirement(
        id="001/events/hello-ack",
        source="seed 001, hello_ack",
        behaviour="`hello_ack` confirms the connection.",
    ),
    Requirement(
        id="001/events/run-started",
        source="seed 001, type RunStartedEvent",
        behaviour="`run_started` has request_id, run_id, session_id and agent_id.",
    ),
    Requirement(
        id="001/events/delta",
        source="seed 001, type DeltaEvent",
        behaviour="`delta` has run_id and a piece of text.",
    ),
    Requirement(
        id="001/events/state",
        source="seed 001, type StateEvent",
        behaviour="`state` has run_id, the state and an optional detail.",
    ),
    Requirement(
        id="001/events/tool-request",
        source="seed 001, type ToolRequestEvent",
        behaviour="`tool_request` has run_id, tool_call_id, tool_name, args and deadline_ts.",
    ),
    Requirement(
        id="001/events/approval-required",
        source="seed 001, type ApprovalRequiredEvent",
        behaviour="`approval_required` has run_id, approval_id, tool_call_id, tool_name and args_summary.",
    ),
    Requirement(
        id="001/events/error",
        source="seed 001, type ErrorEvent",
        behaviour="`error` has a code and a message.",
    ),
    Requirement(
        id="001/events/done",
        source="seed 001, type DoneEvent",
        behaviour="`done` has run_id and usage.",
    ),
    Requirement(
        id="001/events/done-usage",
        source="spec ingress.md, agent_invoke",
        behaviour="`done.usage` has total_tokens, prompt_tokens, completion_tokens and duration_ms.",
    ),
    Requirement(
        id="001/flows/agent",
        source="seed 001, 成功调用 Agent 流程",
        behaviour="The seed's agent flow runs word for word, ids and times aside, for two devices at once.",
    ),
    Requirement(
        id="001/flows/client-tool",
        source="seed 001, Client Tool 流程",
        behaviour="The seed's client tool flow runs word for word, ids and times aside, for two devices at once.",
    ),
    Requirement(
        id="001/flows/approval",
        source="seed 001, 审批流程",
        behaviour="The seed's approval flow runs word for word, ids and times aside, for two devices at once.",
    ),
    Requirement(
        id="001/handshake/socket-at-ws",
        source="seed 001, WebSocket 端点",
        behaviour="Clients connect to `/ws` on the WebSocket port.",
    ),
    Requirement(
        id="001/handshake/hello-first",
        source="spec ingress.md, States CREATED",
        behaviour="The first message of a connection is `hello`.",
    ),
    Requirement(
        id="001/handshake/hello-in-time",
        source="spec ingress.md, States CREATED",
        behaviour="A connection that says no `hello` within 10 s is closed.",
    ),
    Requirement(
        id="001/handshake/hello-answered",
        source="seed 001, hello",
        behaviour="A valid `hello` is answered with `hello_ack`.",
    ),
    Requirement(
        id="001/handshake/hello-key-checked",
        source="seed 001, hello",
        behaviour="`hello` is accepted only with the configured `api_key`.",
    ),
    Requirement(
        id="001/handshake/hello-wrong-key",
        source="spec ingress.md, States CREATED",
        behaviour="A wrong key is answered with `error` `auth_failed` and close code 4401.",
    ),
    Requirement(
        id="001/handshake/hello-makes-session",
        source="seed 001, hello",
        behaviour="A `hello` without session_id makes a new session.",
    ),
    Requirement(
        id="001/handshake/hello-registers",
        source="seed 001, hello",
        behaviour="After `hello` the connection is registered and reachable by its session.",
    ),
    Requirement(
        id="001/handshake/hello-client-meta",
        source="seed 001, hello",
        behaviour="`client_meta` is optional and may hold anything.",
    ),
    Requirement(
        id="001/handshake/ack-shape",
        source="spec ingress.md, hello may carry",
        behaviour="`hello_ack` has type, ts, session_id, resumed, seq and epoch.",
    ),
    Requirement(
        id="001/handshake/no-key-loopback-only",
        source="spec ingress.md, States CREATED",
        behaviour="With no API_KEY the server refuses to start on anything but loopback.",
        superseded_by="001/credentials/any-key-loopback-only",
    ),
    Requirement(
        id="001/handshake/no-key-says-so",
        source="spec ingress.md, States CREATED",
        behaviour="With no API_KEY on loopback any key is accepted and the log says so.",
        superseded_by="001/credentials/key-made",
    ),
    Requirement(
        id="001/handshake/before-hello",
        source="spec ingress.md, Anything before hello",
        behaviour="Any other message before `hello` is answered with `session_not_found`.",
    ),
    Requirement(
        id="001/handshake/resume-own-session",
        source="spec ingress.md, hello may carry",
        behaviour="`hello` with the session_id of the same user resumes that session.",
    ),
    Requirement(
        id="001/handshake/other-users-session",
        source="spec ingress.md, hello may carry",
        behaviour="`hello` with a session of another user is answered with `session_not_found`.",
    ),
    Requirement(
        id="001/handshake/unknown-session",
        source="spec ingress.md, hello may carry",
        behaviour="`hello` with a session_id that does not exist is answered with `session_not_found`.",
    ),
    Requirement(
        id="001/invoke/started",
        source="seed 001, agent_invoke",
        behaviour="`agent_invoke` starts a run of the named agent with the message.",
    ),
    Requirement(
        id="001/invoke/started-first",
        source="spec ingress.md, agent_invoke",
        behaviour="`run_started` comes before every delta of its run.",
    ),
    Requirement(
        id="001/invoke/deltas",
        source="seed 001, Agent 调用流程",
        behaviour="The agent's output arrives as deltas while it is made.",
    ),
    Requirement(
        id="001/invoke/one-end",
        source="spec ingress.md, agent_invoke",
        behaviour="A run ends with exactly one `done` or one final `error`.",
    ),
    Requirement(
        id="001/invoke/nothing-after-end",
        source="spec ingress.md, agent_invoke",
        behaviour="No event of a run follows its end.",
    ),
    Requirement(
        id="001/invoke/same-request-id",
        source="spec ingress.md, agent_invoke",
        behaviour="The same request_id in the same session again gives the same run and starts no second one.",
    ),
    Requirement(
        id="001/invoke/same-request-id-concurrent",
        source="spec ingress.md, agent_invoke",
        behaviour="Equal request_ids that arrive together from two devices start one run.",
    ),
    Requirement(
        id="001/invoke/request-id-per-session",
        source="spec ingress.md, agent_invoke",
        behaviour="The same request_id in another session starts a run of its own.",
    ),
    Requirement(
        id="001/invoke/unknown-agent",
        source="seed 001, orchestrator_error",
        behaviour="An unknown agent_id is answered with `orchestrator_error`, `detail.reason` `unknown_agent`, `detail.retry` false, and the request_id.",
    ),
    Requirement(
        id="001/invoke/session-id-optional",
        source="seed 001, agent_invoke",
        behaviour="`session_id` in `agent_invoke` may be left out.",
    ),
    Requirement(
        id="001/invoke/other-session-refused",
        source="spec ingress.md, cancel_run",
        behaviour="An `agent_invoke` with a session_id that is not the connection's is answered with an error and starts nothing.",
    ),
    Requirement(
        id="001/invoke/durable-before-started",
        source="spec ingress.md, A restart loses no run",
        behaviour="A run is on disk before `run_started` is sent.",
    ),
    Requirement(
        id="001/m0/connect",
        source="seed 001, 客户端可建立",
        behaviour="A client can open a WebSocket connection.",
    ),
    Requirement(
        id="001/m0/hello-ack",
        source="seed 001, 发送 hello 后",
        behaviour="A client that sends hello receives hello_ack.",
    ),
    Requirement(
        id="001/m0/heartbeat",
        source="seed 001, 心跳正常工作",
        behaviour="The heartbeat works.",
    ),
    Requirement(
        id="001/m0/push",
        source="seed 001, 可通过内部 API",
        behaviour="A message can be pushed to a client through the internal API.",
    ),
    Requirement(
        id="001/m1/run-started",
        source="seed 001, 客户端发送 agent_invoke 后",
        behaviour="A client that sends agent_invoke receives run_started.",
    ),
    Requirement(
        id="001/m1/deltas",
        source="seed 001, 持续收到",
        behaviour="A client keeps receiving deltas while the agent works.",
    ),
    Requirement(
        id="001/m1/done",
        source="seed 001, 最终收到",
        behaviour="A client receives done in the end.",
    ),
    Requirement(
        id="001/m2/tool-request",
        source="seed 001, 客户端收到 tool_request",
        behaviour="A client receives tool_request.",
    ),
    Requirement(
        id="001/m2/tool-result-continues",
        source="seed 001, 客户端提交 tool_result",
        behaviour="An agent goes on after the client has submitted tool_result.",
    ),
    Requirement(
        id="001/m2/offline-error",
        source="seed 001, 客户端离线时 Orchestrator",
        behaviour="The orchestrator receives an error when the client is offline.",
    ),
    Requirement(
        id="001/m2/deadline",
        source="seed 001, 超时后通知",
        behaviour="The orchestrator is told when a tool_request passes its deadline_ts.",
    ),
    Requirement(
        id="001/m3/approval-required",
        source="seed 001, 客户端收到 approval_required",
        behaviour="A client receives approval_required.",
    ),
    Requirement(
        id="001/m3/decision-continues",
        source="seed 001, 客户端提交审批决策后",
        behaviour="The flow goes on after the client's decision.",
    ),
    Requirement(
        id="001/m3/rejected",
        source="seed 001, 拒绝时 Agent",
        behaviour="The agent receives the rejected error when the person refuses.",
    ),
    Requirement(
        id="001/m3/state-pushed",
        source="seed 001, 审批完成后",
        behaviour="A state event is pushed when the approval is settled.",
    ),
    Requirement(
        id="001/m4/cancel",
        source="seed 001, 客户端可取消",
        behaviour="A client can cancel a run in progress.",
    ),
    Requirement(
        id="001/m4/errors-uniform",
        source="seed 001, 各类错误",
        behaviour="All kinds of errors have uniform codes and one message format.",
    ),
    Requirement(
        id="001/m4/cleanup",
        source="seed 001, 连接断开时相关资源",
        behaviour="What belongs to a connection is cleaned up when it breaks off.",
    ),
    Requirement(
        id="001/m4/orchestrator-told",
        source="seed 001, 通知 Orchestrator",
        behaviour="The orchestrator is told to cancel the runs of a connection that is gone.",
    ),
    Requirement(
        id="001/m5/multi-device",
        source="seed 001, 同一用户多设备",
        behaviour="Several devices of one user, connected to one session, receive its messages at the same time.",
    ),
    Requirement(
        id="001/m5/status",
        source="seed 001, 可查询 session",
        behaviour="The online status of a session can be queried.",
    ),
    Requirement(
        id="001/m5/short-reconnect",
        source="seed 001, 短时间重连",
        behaviour="A short reconnect loses no event that matters.",
    ),
    Requirement(
        id="001/messages/bad-json",
        source="spec ingress.md, Anything before hello",
        behaviour="Text that is not JSON is answered with `invalid_message` and the connection stays.",
    ),
    Requirement(
        id="001/messages/not-an-object",
        source="spec ingress.md, Anything before hello",
        behaviour="JSON that is no object is answered with `invalid_message`.",
    ),
    Requirement(
        id="001/messages/unknown-type",
        source="spec ingress.md, Anything before hello",
        behaviour="An unknown type is answered with `invalid_message`.",
    ),
    Requirement(
        id="001/messages/missing-field",
        source="spec ingress.md, Anything before hello",
        behaviour="A missing field is answered with `invalid_message` that names the field.",
    ),
    Requirement(
        id="001/messages/wrong-type",
        source="spec ingress.md, Anything before hello",
        behaviour="A field of the wrong type is answered with `invalid_message` that names the field.",
    ),
    Requirement(
        id="001/messages/invalid-utf8",
        source="spec ingress.md, Anything before hello",
        behaviour="Invalid UTF-8 is answered with `invalid_message` and the connection stays.",
        superseded_by="001/messages/not-utf8",
    ),
    Requirement(
        id="001/messages/binary-frame",
        source="spec ingress.md, Anything before hello",
        behaviour="A binary frame is answered with `invalid_message`.",
    ),
    Requirement(
        id="001/messages/oversized",
        source="spec ingress.md, Over 64 KiB",
        behaviour="A message over 64 KiB closes the connection with 1009.",
    ),
    Requirement(
        id="001/messages/largest",
        source="spec ingress.md, Over 64 KiB",
        behaviour="A message of exactly WS_MAX_MESSAGE_BYTES is accepted.",
    ),
    Requirement(
        id="001/messages/connection-survives",
        source="spec ingress.md, Anything before hello",
        behaviour="After any invalid message the connection still serves the next valid one.",
    ),
    Requirement(
        id="001/messages/type-and-ts",
        source="spec ingress.md, Every outgoing message",
        behaviour="Every outgoing message has `type` and `ts`.",
    ),
    Requirement(
        id="001/messages/ts-milliseconds",
        source="spec README.md, time on the wire",
        behaviour="`ts` is integer Unix time in milliseconds.",
    ),
    Requirement(
        id="001/messages/seq-rises",
        source="spec ingress.md, Every outgoing message",
        behaviour="Every event of a session has a `seq` that rises by one.",
    ),
    Requirement(
        id="001/messages/seq-merged",
        source="spec ingress.md, Every outgoing message",
        behaviour="A merged delta carries `first_seq` beside the `seq` of its last part.",
    ),
    Requirement(
        id="001/messages/event-id",
        source="spec ingress.md, Every outgoing message",
        behaviour="Every event of a session has an `event_id` that is never used twice.",
    ),
    Requirement(
        id="001/messages/error-echoes-ids",
        source="spec ingress.md, Every outgoing message",
        behaviour="An `error` carries the request_id and run_id that it is about.",
    ),
    Requirement(
        id="001/messages/order",
        source="spec ingress.md, Order is kept",
        behaviour="The events of a session arrive in the order of their seq.",
    ),
    Requirement(
        id="001/messages/snake-case",
        source="spec README.md, JSON case",
        behaviour="Every member of the ingress and orchestrator JSON is spelt in snake_case.",
    ),
    Requirement(
        id="001/messages/unknown-members",
        source="seed 001, 消息类型定义",
        behaviour="Members that a client adds beyond the contract are ignored.",
    ),
    Requirement(
        id="001/messages/base-members-omitted",
        source="seed 001, 消息类型定义",
        behaviour="request_id, session_id and run_id are left out of a message where they are empty.",
    ),
    Requirement(
        id="001/messages/round-trip-hello",
        source="seed 001, hello",
        behaviour="The seed's `hello` parses into its model and comes back the same.",
    ),
    Requirement(
        id="001/messages/round-trip-agent-invoke",
        source="seed 001, agent_invoke",
        behaviour="The seed's `agent_invoke` parses into its model and comes back the same.",
    ),
    Requirement(
        id="001/messages/round-trip-tool-result",
        source="seed 001, tool_result",
        behaviour="The seed's `tool_result` parses into its model and comes back the same.",
    ),
    Requirement(
        id="001/messages/round-trip-approval-decision",
        source="seed 001, approval_decision",
        behaviour="The seed's `approval_decision` parses into its model and comes back the same.",
    ),
    Requirement(
        id="001/messages/round-trip-cancel-run",
        source="seed 001, cancel_run",
        behaviour="The seed's `cancel_run` parses into its model and comes back the same.",
    ),
    Requirement(
        id="001/messages/round-trip-send",
        source="seed 001, POST /internal/send",
        behaviour="The seed's `/internal/send` bodies parse into their models and come back the same.",
    ),
    Requirement(
        id="001/messages/round-trip-appendix",
        source="seed 001, 附录 A",
        behaviour="Every message of the seed's appendix A parses into its model and comes back the same.",
    ),
    Requirement(
        id="001/messages/not-utf8",
        source="spec ingress.md, UTF-8",
        behaviour="A text message that is not UTF-8 closes the connection with 1007.",
    ),
    Requirement(
        id="001/messages/optional-members",
        source="spec ingress.md, Optional members",
        behaviour="`ts`, `request_id` of an invoke, and `run_id` of a result or decision may be missing.",
    ),
    Requirement(
        id="001/offline/fails-at-once",
        source="seed 001, 离线处理",
        behaviour="Without a resume window a tool_request for an offline client fails at once with `client_offline`.",
    ),
    Requirement(
        id="001/offline/window-waits",
        source="spec ingress.md, No connection",
        behaviour="With RESUME_WINDOW_MS the tool call waits that long for the session to come back.",
    ),
    Requirement(
        id="001/offline/window-returns",
        source="spec ingress.md, No connection",
        behaviour="A session that comes back within the window gets the waiting tool_request.",
    ),
    Requirement(
        id="001/offline/window-off",
        source="spec ingress.md, No connection",
        behaviour="RESUME_WINDOW_MS of 0 turns the waiting off.",
    ),
    Requirement(
        id="001/offline/window-default",
        source="spec ingress.md, No connection",
        behaviour="RESUME_WINDOW_MS is 30000 by default.",
    ),
    Requirement(
        id="001/offline/runs-cancelled",
        source="spec ingress.md, Last connection gone",
        behaviour="A session that stays away beyond the window has its runs cancelled and the orchestrator is told.",
    ),
    Requirement(
        id="001/offline/runs-kept",
        source="spec ingress.md, Last connection gone",
        behaviour="With ON_DISCONNECT=keep the runs of a session that stays away go on.",
    ),
    Requirement(
        id="001/offline/one-device-left",
        source="spec ingress.md, Last connection gone",
        behaviour="Runs are not cancelled while one device of the session is connected.",
    ),
    Requirement(
        id="001/offline/calls-fail-first",
        source="spec ingress.md, Offline",
        behaviour="At the end of the resume window waiting client tools fail with `client_offline` before the runs are cancelled.",
    ),
    Requirement(
        id="001/offline/no-cache",
        source="seed 001, 不做消息缓存",
        behaviour="The MVP keeps no messages for clients that are offline.",
        divergence="Given up for M5: what a session missed is kept and sent again.",
    ),
    Requirement(
        id="001/orchestrator/invoke-sse",
        source="spec ingress.md, POST /internal/invoke",
        behaviour="`POST /internal/invoke` with `Accept: text/event-stream` answers an SSE stream.",
    ),
    Requirement(
        id="001/orchestrator/invoke-sse-first",
        source="spec ingress.md, POST /internal/invoke",
        behaviour="The first event of the stream is `run_started`.",
    ),
    Requirement(
        id="001/orchestrator/invoke-sse-last",
        source="spec ingress.md, POST /internal/invoke",
        behaviour="The last event of the stream is `done` or `error`.",
    ),
    Requirement(
        id="001/orchestrator/invoke-json",
        source="spec ingress.md, POST /internal/invoke",
        behaviour="Without that Accept header invoke answers run_id, session_id and agent_id at once.",
    ),
    Requirement(
        id="001/orchestrator/invoke-json-pushes",
        source="spec ingress.md, POST /internal/invoke",
        behaviour="After a JSON answer the events go to the ingress by push.",
    ),
    Requirement(
        id="001/orchestrator/invoke-message-names",
        source="spec ingress.md, POST /internal/invoke",
        behaviour="Invoke takes the message as `message` or as `input_message`.",
    ),
    Requirement(
        id="001/orchestrator/invoke-malformed",
        source="spec ingress.md, POST /internal/invoke",
        behaviour="A malformed invoke is 400 and starts nothing.",
    ),
    Requirement(
        id="001/orchestrator/invoke-request-id",
        source="spec ingress.md, POST /internal/invoke",
        behaviour="Invoke with a request_id that the session has used gives the same run.",
    ),
    Requirement(
        id="001/orchestrator/invoke-context",
        source="spec ingress.md, POST /internal/invoke",
        behaviour="Invoke takes an optional context and hands it to the agent.",
    ),
    Requirement(
        id="001/orchestrator/submit",
        source="spec ingress.md, POST /internal/tool_calls",
        behaviour="`POST /internal/tool_calls/{id}/submit` takes SUCCEEDED with a result or FAILED with an error.",
    ),
    Requirement(
        id="001/orchestrator/submit-terminal",
        source="spec ingress.md, POST /internal/tool_calls",
        behaviour="Submitting to a tool call that has ended answers what is stored.",
    ),
    Requirement(
        id="001/orchestrator/submit-unknown",
        source="spec ingress.md, POST /internal/tool_calls",
        behaviour="Submitting to an unknown tool call is 404.",
    ),
    Requirement(
        id="001/orchestrator/submit-status",
        source="spec ingress.md, POST /internal/tool_calls",
        behaviour="Submitting any other status is 400.",
    ),
    Requirement(
        id="001/orchestrator/decide",
        source="spec ingress.md, POST /internal/tool_calls",
        behaviour="`POST /internal/approvals/{id}/decide` takes decision, reason and decided_by.",
    ),
    Requirement(
        id="001/orchestrator/decide-alias",
        source="spec ingress.md, POST /internal/tool_calls",
        behaviour="`/internal/approvals/{id}/submit` is the same as decide.",
    ),
    Requirement(
        id="001/orchestrator/decide-unknown",
        source="spec ingress.md, POST /internal/tool_calls",
        behaviour="Deciding an unknown approval is 404.",
    ),
    Requirement(
        id="001/orchestrator/cancel",
        source="spec ingress.md, POST /internal/tool_calls",
        behaviour="`POST /internal/runs/{id}/cancel` cancels the run.",
    ),
    Requirement(
        id="001/orchestrator/cancel-unknown",
        source="spec ingress.md, POST /internal/tool_calls",
        behaviour="Cancelling an unknown run over HTTP is 404.",
    ),
    Requirement(
        id="001/orchestrator/get-run",
        source="spec ingress.md, POST /internal/tool_calls",
        behaviour="`GET /internal/runs/{id}` answers the run and its state.",
    ),
    Requirement(
        id="001/orchestrator/events-stream",
        source="spec ingress.md, POST /internal/tool_calls",
        behaviour="`GET /internal/runs/{id}/events/stream?after=` streams the run's events after a position.",
    ),
    Requirement(
        id="001/orchestrator/default-port",
        source="spec README.md, Default ports",
        behaviour="The orchestrator listens on 8081 by default.",
    ),
    Requirement(
        id="001/orchestrator/health",
        source="seed 001, Docker Compose",
        behaviour="`GET /health` of the orchestrator answers.",
    ),
    Requirement(
        id="001/reconnect/backoff",
        source="seed 001, 重连策略",
        behaviour="The client reconnects after 1 s, doubling up to 30 s.",
    ),
    Requirement(
        id="001/reconnect/retries",
        source="seed 001, 重连策略",
        behaviour="The client gives up after 5 attempts unless told otherwise.",
    ),
    Requirement(
        id="001/reconnect/dedupe",
        source="spec ingress.md, Every outgoing message",
        behaviour="The client drops events that it has seen by seq and event_id.",
    ),
    Requirement(
        id="001/resume/missed-events",
        source="spec ingress.md, Reconnect",
        behaviour="Reconnecting with session_id and last_seq gives every missed event in order and none twice.",
    ),
    Requirement(
        id="001/resume/cut-anywhere",
        source="spec ingress.md, Reconnect",
        behaviour="A connection that is cut at any event boundary loses, repeats and disorders nothing.",
    ),
    Requirement(
        id="001/resume/no-gap-to-live",
        source="spec ingress.md, Reconnect",
        behaviour="Events that arrive during the replay come after it, once.",
    ),
    Requirement(
        id="001/resume/gap-too-old",
        source="spec ingress.md, Reconnect",
        behaviour="A gap older than 24 h or 10,000 events gives `resumed` false and a snapshot.",
    ),
    Requirement(
        id="001/resume/snapshot",
        source="spec ingress.md, Reconnect",
        behaviour="The snapshot holds the open runs, tool calls and approvals.",
    ),
    Requirement(
        id="001/resume/other-epoch",
        source="spec ingress.md, hello may carry",
        behaviour="A `hello` with another epoch than the server's gets a snapshot and no replay.",
    ),
    Requirement(
        id="001/resume/restored",
        source="spec ingress.md, hello may carry",
        behaviour="A home that was put back from a copy, or lacks events that it had, does not start until `toolgate restore accept`, and then has another epoch.",
    ),
    Requirement(
        id="001/resume/same-epoch",
        source="spec ingress.md, hello may carry",
        behaviour="A `hello` with the server's epoch gets a replay.",
    ),
    Requirement(
        id="001/resume/lagging-merged",
        source="spec ingress.md, Every outgoing message",
        behaviour="Deltas that wait for a lagging reader are merged into one with the same text.",
    ),
    Requirement(
        id="001/resume/never-dropped",
        source="spec ingress.md, All devices",
        behaviour="Tool requests, approvals, states and ends are never dropped or merged.",
    ),
    Requirement(
        id="001/resume/without-last-seq",
        source="spec ingress.md, Resume without last_seq",
        behaviour="A `hello` with session_id alone gets the events of open and just ended runs, with their numbers and ids.",
        divergence="A tool request or approval that was answered is left out, so that a client that has forgotten it does not run or decide it again.",
    ),
    Requirement(
        id="001/resume/text-so-far",
        source="spec ingress.md, Resume without last_seq",
        behaviour="It gets the text so far of each open run as one delta with `first_seq`.",
    ),
    Requirement(
        id="001/send/delivered",
        source="seed 001, POST /internal/send",
        behaviour="`POST /internal/send` delivers the event to the session and answers 200 `{ok:true}`.",
    ),
    Requirement(
        id="001/send/all-connections",
        source="spec ingress.md, POST /internal/send",
        behaviour="A pushed event reaches every connection of the session.",
    ),
    Requirement(
        id="001/send/offline",
        source="seed 001, POST /internal/send",
        behaviour="A push to a session without connections answers ok=false and `client_offline`.",
    ),
    Requirement(
        id="001/send/offline-409",
        source="spec ingress.md, POST /internal/send",
        behaviour="The answer to a push without connections is 409 and names the session.",
    ),
    Requirement(
        id="001/send/malformed",
        source="spec ingress.md, POST /internal/send",
        behaviour="A malformed push is 400 and delivers nothing.",
    ),
    Requirement(
        id="001/send/by-run",
        source="spec ingress.md, POST /internal/send",
        behaviour="A push without session_id goes to the session of `event.run_id`.",
    ),
    Requirement(
        id="001/send/unknown-run",
        source="spec ingress.md, POST /internal/send",
        behaviour="A push with neither a session_id nor a known run is refused.",
    ),
    Requirement(
        id="001/send/token",
        source="spec ingress.md, INTERNAL_TOKEN",
        behaviour="With INTERNAL_TOKEN set every `/internal/*` route needs it as a bearer.",
        superseded_by="001/credentials/internal-token",
    ),
    Requirement(
        id="001/send/token-sent",
        source="spec ingress.md, INTERNAL_TOKEN",
        behaviour="With INTERNAL_TOKEN set ingress and orchestrator send it to each other.",
    ),
    Requirement(
        id="001/send/foreign-event",
        source="spec ingress.md, Every outgoing message",
        behaviour="An event of a foreign orchestrator is delivered with a ts, seq and event_id of the session.",
    ),
    Requirement(
        id="001/settings/ws-port",
        source="seed 001, WS_PORT",
        behaviour="WS_PORT is 8090 by default.",
    ),
    Requirement(
        id="001/settings/http-port",
        source="seed 001, HTTP_PORT",
        behaviour="HTTP_PORT is 8091 by default.",
    ),
    Requirement(
        id="001/settings/orchestrator-url",
        source="seed 001, ORCHESTRATOR_URL",
        behaviour="ORCHESTRATOR_URL names the orchestrator that the ingress calls.",
    ),
    Requirement(
        id="001/settings/ping-interval",
        source="seed 001, WS_PING_INTERVAL_MS",
        behaviour="WS_PING_INTERVAL_MS is 30000 by default and sets the ping interval.",
    ),
    Requirement(
        id="001/settings/pong-wait",
        source="seed 001, WS_PONG_WAIT_MS",
        behaviour="WS_PONG_WAIT_MS is 60000 by default and sets how long a pong is waited for.",
    ),
    Requirement(
        id="001/settings/write-wait",
        source="seed 001, WS_WRITE_WAIT_MS",
        behaviour="WS_WRITE_WAIT_MS is 10000 by default and sets how long a write may take.",
    ),
    Requirement(
        id="001/settings/api-key",
        source="seed 001, API_KEY",
        behaviour="API_KEY is the key that `hello` must carry.",
    ),
    Requirement(
        id="001/settings/log-level",
        source="seed 001, LOG_LEVEL",
        behaviour="LOG_LEVEL is info by default and sets what is logged.",
    ),
    Requirement(
        id="001/settings/loopback",
        source="spec README.md, Default ports",
        behaviour="Every listener binds 127.0.0.1 unless told otherwise.",
    ),
    Requirement(
        id="001/states/run-created",
        source="spec ingress.md, Run",
        behaviour="A run starts as CREATED and moves to RUNNING.",
    ),
    Requirement(
        id="001/states/run-waits-tool",
        source="spec ingress.md, Run",
        behaviour="A run that waits for a tool is PAUSED_WAITING_TOOL and then RUNNING again.",
    ),
    Requirement(
        id="001/states/run-waits-approval",
        source="spec ingress.md, Run",
        behaviour="A run that waits for an approval is PAUSED_WAITING_APPROVAL and then RUNNING again.",
    ),
    Requirement(
        id="001/states/run-ends",
        source="spec ingress.md, Run",
        behaviour="A run ends as DONE, FAILED or CANCELLED and never leaves that state.",
    ),
    Requirement(
        id="001/states/run-illegal-moves",
        source="spec ingress.md, Run",
        behaviour="Every move of a run that is not in the table is refused.",
    ),
    Requirement(
        id="001/states/tool-call-checked",
        source="spec ingress.md, Tool call",
        behaviour="A tool call goes from CREATED to POLICY_CHECKED.",
    ),
    Requirement(
        id="001/states/tool-call-waits",
        source="spec ingress.md, Tool call",
        behaviour="A tool call that needs approval is WAITING_APPROVAL, then DISPATCHED or REJECTED.",
    ),
    Requirement(
        id="001/states/tool-call-runs",
        source="spec ingress.md, Tool call",
        behaviour="A dispatched tool call is RUNNING and ends as SUCCEEDED, FAILED or TIMEOUT.",
    ),
    Requirement(
        id="001/states/tool-call-illegal-moves",
        source="spec ingress.md, Tool call",
        behaviour="Every move of a tool call that is not in the table is refused.",
    ),
    Requirement(
        id="001/states/approval-moves",
        source="spec ingress.md, Tool call",
        behaviour="An approval goes from PENDING to APPROVED, REJECTED or EXPIRED and nowhere else.",
        divergence="An approval that is overtaken before it is used becomes REJECTED.",
    ),
    Requirement(
        id="001/states/approval-overtaken",
        source="spec ingress.md, Tool call",
        behaviour=(
            "An approval whose call may not run any more, because the policy, the place or the tool"
            " has changed, is REJECTED by `policy`."
        ),
    ),
    Requirement(
        id="001/states/compare-and-set",
        source="spec ingress.md, Every move",
        behaviour="Of a result, a time-out and a cancel that race, one wins and the rest learn it.",
    ),
    Requirement(
        id="001/status/online",
        source="seed 001, GET /internal/sessions/:session_id/status",
        behaviour="The status of a session has session_id, online, connection_count and last_activity_at.",
    ),
    Requirement(
        id="001/status/unknown",
        source="spec ingress.md, GET /internal/sessions",
        behaviour="The status of an unknown session is online false, 0 connections and null.",
    ),
    Requirement(
        id="001/status/counts-devices",
        source="seed 001, GET /internal/sessions/:session_id/status",
        behaviour="`connection_count` is the number of devices connected now.",
    ),
    Requirement(
        id="001/status/health",
        source="seed 001, GET /health",
        behaviour="`GET /health` answers status `healthy`, connections and uptime_seconds.",
    ),
    Requirement(
        id="001/status/health-connections",
        source="seed 001, GET /health",
        behaviour="`connections` in health is the number of connections now.",
    ),
    Requirement(
        id="001/tools/request-delivered",
        source="seed 001, Tool Request 下发流程",
        behaviour="A tool_request of the orchestrator reaches the session's client.",
    ),
    Requirement(
        id="001/tools/result-ok",
        source="spec ingress.md, tool_result",
        behaviour="A `tool_result` with ok=true makes the tool call SUCCEEDED.",
    ),
    Requirement(
        id="001/tools/result-not-ok",
        source="spec ingress.md, tool_result",
        behaviour="A `tool_result` with ok=false makes the tool call FAILED.",
    ),
    Requirement(
        id="001/tools/result-error-forms",
        source="spec ingress.md, tool_result",
        behaviour="The `error` of a tool_result may be a string or an object.",
    ),
    Requirement(
        id="001/tools/result-resumes-run",
        source="seed 001, Tool Request 下发流程",
        behaviour="After the tool_result the agent goes on with the result.",
    ),
    Requirement(
        id="001/tools/first-wins",
        source="spec ingress.md, tool_result",
        behaviour="Of several tool_results for one call the first one wins.",
    ),
    Requirement(
        id="001/tools/duplicate-answered",
        source="spec ingress.md, tool_result",
        behaviour="A duplicate or late tool_result gets an `error` and is not submitted again.",
    ),
    Requirement(
        id="001/tools/not-yours",
        source="spec ingress.md, cancel_run",
        behaviour="A tool_result for a call of another session is answered with an error and changes nothing.",
    ),
    Requirement(
        id="001/tools/unknown-call",
        source="spec ingress.md, cancel_run",
        behaviour="A tool_result for a call that does not exist is answered with an error.",
    ),
    Requirement(
        id="001/tools/wrong-run",
        source="spec ingress.md, cancel_run",
        behaviour="A tool_result whose run_id is not the call's run is answered with an error.",
    ),
    Requirement(
        id="001/tools/deadline",
        source="spec ingress.md, Tool time-out",
        behaviour="A tool_request carries a `deadline_ts` 60 s ahead unless told otherwise.",
    ),
    Requirement(
        id="001/tools/timeout",
        source="spec ingress.md, Tool time-out",
        behaviour="A tool call without a result at its deadline is TIMEOUT and the agent is told.",
    ),
    Requirement(
        id="001/tools/client-tools-ask",
        source="spec ingress.md, Agents",
        behaviour="The shipped policy asks before a client's own tool runs, whatever its name.",
    ),
    Requirement(
        id="001/tools/client-tools-in-hello",
        source="spec ingress.md, Agents",
        behaviour="Client tools are registered by `client_meta.tools` in `hello`.",
    ),
    Requirement(
        id="001/tools/client-tools-by-api",
        source="spec ingress.md, Agents",
        behaviour="Client tools can be registered over the orchestrator's API.",
    ),
    Requirement(
        id="001/tools/server-tools-policed",
        source="spec ingress.md, Tool call",
        behaviour="A tool call of an agent that runs on the server goes through the tool pipeline.",
    ),
    Requirement(
        id="001/tools/blocked",
        source="spec README.md, refusal by policy",
        behaviour="A tool call that the policy denies is BLOCKED and the agent gets code `blocked`.",
    ),
    Requirement(
        id="001/tools/result-confirmed",
        source="spec ingress.md, Confirmations",
        behaviour="An accepted `tool_result` is answered with `state` and `detail {tool_call_id, accepted}`.",
    ),
    Requirement(
        id="001/tools/error-is-a-string",
        source="seed 001, type ToolResultMessage",
        behaviour="`error` of a tool_result is a string, from our client and to any orchestrator.",
    ),
)
