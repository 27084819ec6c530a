"""Seed 003: a service that has tools run, for whoever builds an executor.

The seed fixes a method, `runTool(request)`; over HTTP it is `POST /tool/run`, and a ref is read with
`GET /artifact/get?ref=`.
"""

import uuid
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import aiohttp

from toolgate.testkit.checks import HttpAnswer, Kit, NotChecked, ask, member, need, quoted


@dataclass(slots=True)
class ServicePeer:
    url: str
    http: aiohttp.ClientSession
    token: str = ""
    tool: str = "kv.get"  # one that the policy allows
    args: dict[str, Any] = field(default_factory=lambda: {"key": "testkit"})
    denied: str = "testkit.no_such_tool"  # one that it does not

    async def run(self, tool: str, args: Any, **members: Any) -> HttpAnswer:
        body = {"request_id": f"testkit_{uuid.uuid4().hex}", "tool_id": tool, "args": args}
        return await ask(
            self.http,
            "POST",
            f"{self.url}/tool/run",
            {**body, **members},
            authorization=f"Bearer {self.token}" if self.token else "",
        )

    async def allowed(self, **members: Any) -> dict[str, Any]:
        answer = await self.run(self.tool, self.args, **members)
        response = checked(answer)
        if response["policy_check"]["decision"] != "allow":
            raise NotChecked(f"the policy denies {self.tool}; name another one with --tool")
        return response

    async def refused(self, **members: Any) -> tuple[HttpAnswer, dict[str, Any]]:
        answer = await self.run(self.denied, {}, **members)
        response = checked(answer)
        if response["policy_check"]["decision"] != "deny":
            raise NotChecked(f"the policy allows {self.denied}; name another one with --denied")
        return answer, response

    async def read(self, ref: str) -> HttpAnswer:
        return await ask(
            self.http,
            "GET",
            f"{self.url}/artifact/get?ref={quote(ref, safe='')}",
            authorization=f"Bearer {self.token}" if self.token else "",
        )


def checked(answer: HttpAnswer) -> dict[str, Any]:
    """A response with the members that are always present; raises DoesNotHold."""
    need(answer.status in (200, 403), f"it answered {answer.status}: {quoted(answer.text)}")
    response = answer.json
    member(response, "ok", bool, of="the response")
    policy = member(response, "policy_check", dict, of="the response")
    need(policy.get("decision") in ("allow", "deny"), f"`decision` is {policy.get('decision')!r}")
    member(policy, "reason", str, of="`policy_check`")
    if "rule_id" in policy:
        member(policy, "rule_id", str, of="`policy_check`")
    refs = member(response, "evidence_refs", list, of="the response")
    need(refs and all(isinstance(ref, str) for ref in refs), f"`evidence_refs` is {quoted(refs)}")
    member(response, "engine_ref", str, of="the response")
    return dict(response)


KIT: Final[Kit[ServicePeer]] = Kit("003")


@KIT.check(
    "Output: `Response`",
    "Present if ok=true and decision=allow",
    "an allowed call has `tool_result` with exit_code, stdout and stderr",
)
async def answers_an_allowed_call(peer: ServicePeer) -> None:
    response = await peer.allowed()
    result = member(response, "tool_result", dict, of="the response")
    code = member(result, "exit_code", int, of="`tool_result`")
    member(result, "stdout", str, of="`tool_result`")
    member(result, "stderr", str, of="`tool_result`")
    need(response["ok"] is (code == 0), f"`ok` is {response['ok']} with exit code {code}")


@KIT.check(
    "Requirements 3",
    '3. **DENY = no execution**: When `policy_check.decision === "deny"`, `tool_result` must be absent',
    "a denied call has `ok: false` and no `tool_result`",
)
async def answers_a_denied_call(peer: ServicePeer) -> None:
    _, response = await peer.refused()
    need(response["ok"] is False, "`ok` is true")
    need("tool_result" not in response, "`tool_result` is present")


@KIT.check(
    "Requirements 6",
    "policy DENY returns `ok: false` without throwing.",
    "a denied call is HTTP 403 with the whole response as its body",
)
async def denies_with_403(peer: ServicePeer) -> None:
    answer, _ = await peer.refused()
    need(answer.status == 403, f"it answered {answer.status}")


@KIT.check(
    "Output: `Response`",
    "Echo of input run_id if provided",
    "run_id and step_id come back exactly where they were given",
)
async def echoes_ids(peer: ServicePeer) -> None:
    ids = {"run_id": "run_testkit", "step_id": "step_testkit"}
    given = await peer.allowed(ctx=ids)
    need({name: given.get(name) for name in ids} == ids, f"given: {quoted(given)}")
    without = await peer.allowed()
    need(not ids.keys() & without.keys(), f"not given, but answered: {quoted(without)}")


@KIT.check("Input: `request`", "ctx?: {", "ctx may be missing, or null")
async def takes_no_ctx(peer: ServicePeer) -> None:
    await peer.allowed(ctx=None)


@KIT.check(
    "Requirements 4",
    "`evidence_refs` must always be present and non-empty (even for DENY).",
    "every ref of an allowed and of a denied call can be read back",
)
async def has_readable_evidence(peer: ServicePeer) -> None:
    _, denied = await peer.refused()
    for response in (await peer.allowed(), denied):
        for ref in response["evidence_refs"]:
            answer = await peer.read(ref)
            need(answer.is_success, f"{ref} is answered {answer.status}")


@KIT.check(
    "Requirements 5",
    "Never mix remote and local in the same array.",
    "`local_evidence_paths` are relative and none of the refs",
)
async def keeps_local_paths_apart(peer: ServicePeer) -> None:
    response = await peer.allowed()
    paths = response.get("local_evidence_paths", [])
    need(isinstance(paths, list), f"`local_evidence_paths` is {quoted(paths)}")
    mixed = set(paths) & set(response["evidence_refs"])
    need(not mixed, f"in both: {sorted(mixed)}")
    outside = [path for path in paths if path.startswith("/") or ".." in path.split("/")]
    need(not outside, f"not relative: {outside}")


@KIT.check(
    "Requirements 1",
    "must be deterministic and stable across retries",
    "the same request again has the same response and the same evidence",
)
async def repeats_its_answer(peer: ServicePeer) -> None:
    request_id = f"testkit_{uuid.uuid4().hex}"
    first = await peer.allowed(request_id=request_id)
    again = await peer.allowed(request_id=request_id)
    need(first == again, f"first {quoted(first)}, then {quoted(again)}")


@KIT.check(
    "Requirements 2",
    "Evidence artifacts must never contain secrets, tokens, or sensitive data.",
    "a token in the arguments is in no evidence artifact",
)
async def keeps_no_secret(peer: ServicePeer) -> None:
    secret = f"sk-testkit-{uuid.uuid4().hex}{uuid.uuid4().hex}"
    answer = await peer.run(peer.denied, {"headers": {"Authorization": f"Bearer {secret}"}})
    for ref in checked(answer)["evidence_refs"]:
        need(secret not in (await peer.read(ref)).text, f"{ref} holds it")
