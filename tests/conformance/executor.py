"""What the executor driver contract (seed 003) asks for. Only data."""

from typing import Final

from tests.conformance.requirement import Requirement

REQUIREMENTS: Final[tuple[Requirement, ...]] = (
    Requirement(
        id="003/deny/no-tool-result",
        source="seed 003, DENY = no execution",
        behaviour="A denied call has no `tool_result`.",
    ),
    Requirement(
        id="003/deny/no-execution",
        source="seed 003, DENY = no execution",
        behaviour="A denied call executes nothing and has no side effect.",
    ),
    Requirement(
        id="003/deny/evidence",
        source="seed 003, Evidence required",
        behaviour="A denied call leaves evidence.",
    ),
    Requirement(
        id="003/deny/does-not-throw",
        source="seed 003, Error handling",
        behaviour="A denied call returns ok=false and raises nothing.",
    ),
    Requirement(
        id="003/deny/unknown-policy-ref",
        source="spec executor.md, Unknown policy_ref",
        behaviour="An unknown policy_ref is denied with rule_id `policy_not_found`.",
    ),
    Requirement(
        id="003/errors/network-raises",
        source="seed 003, Error handling",
        behaviour="A network failure of a remote executor raises.",
    ),
    Requirement(
        id="003/errors/timeout-raises",
        source="spec executor.md, Network failure",
        behaviour="A remote executor that runs out of time raises.",
    ),
    Requirement(
        id="003/errors/non-json-raises",
        source="spec executor.md, Network failure",
        behaviour="A remote executor that answers no JSON raises.",
    ),
    Requirement(
        id="003/errors/deny-403-returned",
        source="spec executor.md, Network failure",
        behaviour="HTTP 403 with a deny body is returned as the denied response and does not raise.",
    ),
    Requirement(
        id="003/errors/unknown-tool",
        source="spec executor.md, Unknown policy_ref",
        behaviour="An unknown tool under an allowing policy ends with exit code 1 and `Unknown tool: X`.",
    ),
    Requirement(
        id="003/evidence/refs-never-empty",
        source="seed 003, Evidence required",
        behaviour="`evidence_refs` is in every response and never empty.",
    ),
    Requirement(
        id="003/evidence/ref-format",
        source="seed 003, Output",
        behaviour="A ref has the form `requests/<request_id>/<artifact>.json`.",
    ),
    Requirement(
        id="003/evidence/always-request",
        source="spec executor.md, evidence_refs",
        behaviour="`request.json` is among the refs of every call.",
    ),
    Requirement(
        id="003/evidence/always-engine-identity",
        source="spec executor.md, evidence_refs",
        behaviour="`engine_identity.json` is among the refs of every call.",
    ),
    Requirement(
        id="003/evidence/deny-artifacts",
        source="spec executor.md, evidence_refs",
        behaviour="A denied call adds `policy_decision.json` and no tool result.",
    ),
    Requirement(
        id="003/evidence/allow-artifacts",
        source="spec executor.md, evidence_refs",
        behaviour="An allowed call adds `policy_decision.json`, `tool_result.json` and `response.json`.",
    ),
    Requirement(
        id="003/evidence/refs-fetchable",
        source="seed 003, Evidence separation",
        behaviour="Every ref of a response can be fetched back through the executor.",
    ),
    Requirement(
        id="003/evidence/local-paths-apart",
        source="seed 003, Evidence separation",
        behaviour="Local files are only in `local_evidence_paths`, and refs only in `evidence_refs`.",
    ),
    Requirement(
        id="003/evidence/local-paths-optional",
        source="seed 003, Output",
        behaviour="`local_evidence_paths` may be absent.",
    ),
    Requirement(
        id="003/evidence/local-paths-relative",
        source="spec executor.md, local_evidence_paths",
        behaviour="Local paths are relative, posix and without `..`.",
    ),
    Requirement(
        id="003/evidence/local-paths-exist",
        source="spec executor.md, local_evidence_paths",
        behaviour="Every local path names a file that exists.",
    ),
    Requirement(
        id="003/evidence/policy-version",
        source="spec executor.md, An empty host list",
        behaviour="The version of the policy that decided is in the evidence.",
    ),
    Requirement(
        id="003/http/tool-run",
        source="spec executor.md, HTTP form",
        behaviour="`POST /tool/run` runs a request and answers 200 with the response where it was allowed.",
    ),
    Requirement(
        id="003/http/tool-run-deny",
        source="spec executor.md, HTTP form",
        behaviour="`POST /tool/run` answers a denied call 403 with the full body.",
    ),
    Requirement(
        id="003/http/tool-run-bearer",
        source="spec executor.md, HTTP form",
        behaviour="`POST /tool/run` without the right bearer is refused.",
    ),
    Requirement(
        id="003/http/tool-run-malformed",
        source="spec executor.md, HTTP form",
        behaviour="`POST /tool/run` answers a malformed request 400 and runs nothing.",
    ),
    Requirement(
        id="003/http/artifact-get",
        source="spec executor.md, evidence_refs",
        behaviour="`GET /artifact/get?ref=` answers the artifact.",
    ),
    Requirement(
        id="003/http/artifact-ref-length",
        source="spec executor.md, evidence_refs",
        behaviour="A ref over 512 characters is refused.",
    ),
    Requirement(
        id="003/http/artifact-ref-charset",
        source="spec executor.md, evidence_refs",
        behaviour="A ref outside `[A-Za-z0-9._/-]+`, with `..` or with a leading `/` is refused.",
    ),
    Requirement(
        id="003/http/artifact-unknown",
        source="spec executor.md, evidence_refs",
        behaviour="A ref that names no artifact is 404.",
    ),
    Requirement(
        id="003/http/artifact-no-store",
        source="spec executor.md, evidence_refs",
        behaviour="An artifact is answered with `Cache-Control: no-store`.",
    ),
    Requirement(
        id="003/http/artifact-bearer",
        source="spec executor.md, HTTP form",
        behaviour="`GET /artifact/get` without the right bearer is refused.",
    ),
    Requirement(
        id="003/http/episode-search",
        source="spec executor.md, HTTP form",
        behaviour="`POST /episode/search` finds calls by id, id_prefix, decision, type, since_ts and until_ts.",
    ),
    Requirement(
        id="003/http/episode-limit",
        source="spec executor.md, HTTP form",
        behaviour="`POST /episode/search` takes a limit of 1 to 100 and 20 by default.",
    ),
    Requirement(
        id="003/http/episode-order",
        source="spec executor.md, HTTP form",
        behaviour="`POST /episode/search` gives the order that was asked for.",
    ),
    Requirement(
        id="003/http/episode-index",
        source="spec executor.md, HTTP form",
        behaviour="`POST /episode/search` with a rare filter reads only the rows that may match.",
    ),
    Requirement(
        id="003/http/episode-stopped-early",
        source="spec executor.md, HTTP form",
        behaviour="A search that stopped before it had read everything says so, and how far it came.",
    ),
    Requirement(
        id="003/http/iso-times",
        source="spec README.md, time on the wire",
        behaviour="Times in answers and artifacts are ISO 8601 with milliseconds and Z.",
    ),
    Requirement(
        id="003/http/health",
        source="spec executor.md, HTTP form",
        behaviour="`GET /health` of an executor answers.",
    ),
    Requirement(
        id="003/http/waiting",
        source="spec executor.md, A call that waits for a person",
        behaviour="A call that waits is answered 403 with rule_id `approval_required` and `approval_id`; after the decision the same request has the result.",
    ),
    Requirement(
        id="003/http/chained",
        source="spec executor.md, HTTP form",
        behaviour="One installation runs tools through another by this contract.",
    ),
    Requirement(
        id="003/ids/deterministic",
        source="seed 003, Stable IDs",
        behaviour="request_id, run_id and step_id are the same for every retry of a request.",
    ),
    Requirement(
        id="003/ids/derived-run-id",
        source="spec executor.md, Missing run_id",
        behaviour="A missing run_id is `run_<request_id>`.",
        superseded_by="003/response/ids-only-where-given",
    ),
    Requirement(
        id="003/ids/derived-step-id",
        source="spec executor.md, Missing run_id",
        behaviour="A missing step_id is `step_<request_id>`.",
        superseded_by="003/response/ids-only-where-given",
    ),
    Requirement(
        id="003/ids/no-clock",
        source="spec executor.md, Missing run_id",
        behaviour="No id that a retry must reproduce is made from a clock or from chance.",
    ),
    Requirement(
        id="003/pipeline/one-way",
        source="spec executor.md, One pipeline",
        behaviour="Every tool call passes the same pipeline, whichever door it came in by.",
    ),
    Requirement(
        id="003/pipeline/order",
        source="spec executor.md, One pipeline",
        behaviour="A call goes through policy, approval, driver, evidence and audit in this order.",
    ),
    Requirement(
        id="003/pipeline/audit-row",
        source="spec executor.md, One pipeline",
        behaviour="Every call leaves an audit row, whether it was allowed or not.",
    ),
    Requirement(
        id="003/pipeline/approval-waits",
        source="spec executor.md, One pipeline",
        behaviour="A call that the policy asks about does not run before a person has approved it.",
    ),
    Requirement(
        id="003/pipeline/approval-refused",
        source="spec executor.md, One pipeline",
        behaviour="A call whose approval was rejected or has expired does not run.",
    ),
    Requirement(
        id="003/policy/default-deny",
        source="spec executor.md, Tool X not in allowlist",
        behaviour="A tool that is not listed is denied with `Tool X not in allowlist (default deny)` and rule_id `default_deny`.",
    ),
    Requirement(
        id="003/policy/allowlist-match",
        source="spec executor.md, Tool X is in allowlist",
        behaviour="A listed tool is allowed with `Tool X is in allowlist` and rule_id `tool_allowlist_match`.",
    ),
    Requirement(
        id="003/policy/hostname",
        source="spec executor.md, Hostname H",
        behaviour="A host that is not listed is denied with `Hostname H not in allowlist` and rule_id `http_fetch_hostname_check`.",
    ),
    Requirement(
        id="003/policy/bad-url",
        source="spec executor.md, Hostname H",
        behaviour="A URL that cannot be read is denied with rule_id `http_fetch_url_validation`.",
    ),
    Requirement(
        id="003/policy/default-allow",
        source="spec executor.md, Default allow policy",
        behaviour="A policy that allows by default says `Default allow policy` and rule_id `default_allow`.",
    ),
    Requirement(
        id="003/policy/empty-hosts",
        source="spec executor.md, An empty host list",
        behaviour="An empty host list means no host.",
    ),
    Requirement(
        id="003/policy/redirects",
        source="spec executor.md, An empty host list",
        behaviour="Each redirect hop is checked against the policy again.",
    ),
    Requirement(
        id="003/repeat/stored-response",
        source="spec executor.md, Same request_id",
        behaviour="The same request_id with the same content answers the stored response.",
    ),
    Requirement(
        id="003/repeat/run-once",
        source="spec executor.md, Same request_id",
        behaviour="The same request_id with the same content runs the tool once.",
    ),
    Requirement(
        id="003/repeat/evidence-untouched",
        source="spec executor.md, Same request_id",
        behaviour="A repeated request leaves the evidence as it was.",
    ),
    Requirement(
        id="003/repeat/concurrent",
        source="spec executor.md, Same request_id",
        behaviour="Many equal requests that arrive together run the tool once and all get the same response.",
    ),
    Requirement(
        id="003/repeat/conflict",
        source="spec executor.md, Same request_id",
        behaviour="The same request_id with other content is denied with rule_id `request_id_conflict`.",
    ),
    Requirement(
        id="003/repeat/never-overwritten",
        source="spec executor.md, Same request_id",
        behaviour="A conflicting request overwrites no evidence.",
    ),
    Requirement(
        id="003/repeat/for-ever",
        source="spec README.md, idempotency",
        behaviour="A repeated request is answered from the store after a restart as well.",
    ),
    Requirement(
        id="003/request/request-id-required",
        source="seed 003, Input",
        behaviour="`request_id` is required and is a string.",
    ),
    Requirement(
        id="003/request/tool-id-required",
        source="seed 003, Input",
        behaviour="`tool_id` is required and names the tool.",
    ),
    Requirement(
        id="003/request/args-object",
        source="seed 003, Input",
        behaviour="`args` is required and is an object.",
    ),
    Requirement(
        id="003/request/ctx-null",
        source="spec executor.md, run_id, step_id come back",
        behaviour="A `ctx` of null is no ctx.",
    ),
    Requirement(
        id="003/request/ctx-optional",
        source="seed 003, Input",
        behaviour="`ctx` and each of its members may be left out.",
    ),
    Requirement(
        id="003/request/policy-ref-default",
        source="seed 003, Input",
        behaviour="`ctx.policy_ref` defaults to `policy.default`.",
    ),
    Requirement(
        id="003/request/malformed-raises",
        source="spec executor.md, Unknown policy_ref",
        behaviour="A malformed request raises before anything runs.",
    ),
    Requirement(
        id="003/request/request-id-charset",
        source="spec executor.md, request_id",
        behaviour="A `request_id` outside `[A-Za-z0-9._-]{1,128}`, or with `..`, is refused where it makes a path.",
    ),
    Requirement(
        id="003/request/snake-case",
        source="spec README.md, JSON case",
        behaviour="Every member of request and response is spelt in snake_case.",
    ),
    Requirement(
        id="003/response/ok-success",
        source="spec executor.md, ok",
        behaviour="`ok` is true where the call was allowed and the tool's exit code is 0.",
    ),
    Requirement(
        id="003/response/ok-failed-tool",
        source="spec executor.md, ok",
        behaviour="`ok` is false where the tool ran with another exit code than 0.",
    ),
    Requirement(
        id="003/response/tool-result-kept",
        source="spec executor.md, ok",
        behaviour="`tool_result` stays whenever the tool ran, so that a failed tool is told from a refused one.",
    ),
    Requirement(
        id="003/response/exit-code",
        source="seed 003, Output",
        behaviour="`tool_result.exit_code` is 0 for success and not 0 for failure.",
    ),
    Requirement(
        id="003/response/tool-result-where-allowed",
        source="seed 003, Output",
        behaviour="`tool_result` is present where the call was allowed and `ok` is true.",
    ),
    Requirement(
        id="003/response/stdout-string",
        source="seed 003, Output",
        behaviour="`tool_result.stdout` is always a string.",
    ),
    Requirement(
        id="003/response/stderr-string",
        source="seed 003, Output",
        behaviour="`tool_result.stderr` is always a string, and empty where there is none.",
    ),
    Requirement(
        id="003/response/data-optional",
        source="seed 003, Output",
        behaviour="`tool_result.data` holds structured data where the tool has some, and is left out where not.",
    ),
    Requirement(
        id="003/response/output-capped",
        source="spec executor.md, ok",
        behaviour="stdout and stderr are capped and say when they were cut.",
    ),
    Requirement(
        id="003/response/policy-check-always",
        source="seed 003, Output",
        behaviour="`policy_check` is in every response.",
    ),
    Requirement(
        id="003/response/policy-check-shape",
        source="seed 003, Output",
        behaviour="`policy_check` has a decision of allow or deny, a reason, and may have a rule_id.",
    ),
    Requirement(
        id="003/response/engine-ref",
        source="seed 003, Output",
        behaviour="`engine_ref` is in every response and names the engine.",
    ),
    Requirement(
        id="003/response/echo-run-id",
        source="seed 003, Output",
        behaviour="`run_id` comes back exactly as it was given.",
    ),
    Requirement(
        id="003/response/echo-step-id",
        source="seed 003, Output",
        behaviour="`step_id` comes back exactly as it was given.",
    ),
    Requirement(
        id="003/response/ids-only-where-given",
        source="spec executor.md, run_id, step_id come back",
        behaviour="`run_id` and `step_id` are in the answer only where the request gave them.",
    ),
    Requirement(
        id="003/response/deny-example",
        source="seed 003, Example",
        behaviour="The seed's DENY example parses into its model and comes back the same.",
    ),
    Requirement(
        id="003/response/allow-example",
        source="seed 003, Example",
        behaviour="The seed's ALLOW example parses into its model and comes back the same.",
    ),
    Requirement(
        id="003/secrets/none-in-evidence",
        source="seed 003, No secrets in evidence",
        behaviour="No artifact of a call contains a secret, token or other sensitive value.",
    ),
    Requirement(
        id="003/secrets/header-names",
        source="spec executor.md, No secrets",
        behaviour="The values of authorization, proxy-authorization, cookie, set-cookie, x-api-key, x-device-token and x-gateway-token headers are removed.",
    ),
    Requirement(
        id="003/secrets/key-names",
        source="spec executor.md, No secrets",
        behaviour="The values of members named token, secret, password, api_key, private_key, mnemonic and their like are removed.",
    ),
    Requirement(
        id="003/secrets/bearer",
        source="spec executor.md, No secrets",
        behaviour="A bearer token in any string is removed.",
    ),
    Requirement(
        id="003/secrets/jwt",
        source="spec executor.md, No secrets",
        behaviour="A JWT in any string is removed.",
    ),
    Requirement(
        id="003/secrets/pem",
        source="spec executor.md, No secrets",
        behaviour="A PEM private key in any string is removed.",
    ),
    Requirement(
        id="003/secrets/provider-keys",
        source="spec executor.md, No secrets",
        behaviour="Keys of the forms sk-..., gh?_... and AKIA... in any string are removed.",
    ),
    Requirement(
        id="003/secrets/url-userinfo",
        source="spec executor.md, No secrets",
        behaviour="The user info of a URL is removed.",
    ),
    Requirement(
        id="003/secrets/query-tokens",
        source="spec executor.md, No secrets",
        behaviour="Tokens in a URL's query are removed.",
    ),
    Requirement(
        id="003/secrets/everywhere",
        source="spec executor.md, No secrets",
        behaviour="Redaction covers requests, stdout, stderr, responses and traces.",
    ),
    Requirement(
        id="003/secrets/audit-events-logs",
        source="spec executor.md, No secrets",
        behaviour="No secret appears in the audit, in an event or in a log line.",
    ),
    Requirement(
        id="003/tools/kv-get-found",
        source="spec executor.md, Tools every installation has",
        behaviour="`kv.get` of a key that is there gives its value as stdout and as data.",
    ),
    Requirement(
        id="003/tools/kv-get-absent",
        source="spec executor.md, Tools every installation has",
        behaviour="`kv.get` of a key that is absent gives exit code 0 and data null.",
    ),
    Requirement(
        id="003/tools/kv-set",
        source="spec executor.md, Tools every installation has",
        behaviour="`kv.set` stores a value that `kv.get` then gives.",
    ),
    Requirement(
        id="003/tools/http-fetch",
        source="spec executor.md, Tools every installation has",
        behaviour="`http.fetch {url, headers?}` gets a URL.",
    ),
    Requirement(
        id="003/tools/http-fetch-get-only",
        source="spec executor.md, Tools every installation has",
        behaviour="`http.fetch` makes GET requests only.",
    ),
    Requirement(
        id="003/tools/http-fetch-status",
        source="spec executor.md, Tools every installation has",
        behaviour="`http.fetch` of a status of 400 or more gives exit code 1, stderr `HTTP <status>` and keeps the body.",
    ),
    Requirement(
        id="003/tools/shell",
        source="spec executor.md, Tools every installation has",
        behaviour="`shell {command, timeout_ms?}` runs the command and gives its exit code, stdout and stderr.",
    ),
    Requirement(
        id="003/tools/shell-timeout",
        source="spec executor.md, Tools every installation has",
        behaviour="`shell` past its timeout_ms is killed and fails.",
    ),
    Requirement(
        id="003/tools/file-read",
        source="spec executor.md, Tools every installation has",
        behaviour="`file.read {path, max_bytes}` gives the file's first bytes, 4096 unless told otherwise.",
    ),
    Requirement(
        id="003/tools/file-list",
        source="spec executor.md, Tools every installation has",
        behaviour="`file.list {path}` lists a directory.",
    ),
)
