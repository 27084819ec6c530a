"""Goals: rules choose a template for a goal, and shape its result.

What comes out fits the schema that was given, or the failure says in which way it does not.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from toolgate.core.enums import TaskCode
from toolgate.core.urls import urls_in
from toolgate.tasks.state import TaskFailed
from toolgate.tasks.toolset import RUN, Answer, Call, Toolset

Check = Callable[[Any, Mapping[str, Any]], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Plan:
    template_id: str
    inputs: Mapping[str, Any]


class TaskAgent:
    def __init__(self, toolset: Toolset, *, check: Check) -> None:
        self._toolset = toolset
        self._check = check

    async def run(
        self,
        goal: str,
        call: Call,
        *,
        inputs: Mapping[str, Any] | None = None,
        output_schema: Mapping[str, Any] | None = None,
        timeout_ms: int | None = None,
    ) -> Answer:
        """{runId, templateId, output}; raises TaskFailed, with details that explain it."""
        plan = self._plan(goal, inputs or {})
        options: dict[str, Any] = {"mode": "sync"}
        if timeout_ms is not None:
            options["timeoutMs"] = timeout_ms
        answer = await self._toolset.call(
            RUN,
            {"templateId": plan.template_id, "inputs": dict(plan.inputs), "options": options},
            call,
        )
        # A run whose end cannot be written is answered as one that still runs, without a result.
        if answer.get("result") is None or answer["status"] == "failed":
            error = answer.get("error") or {}
            raise TaskFailed(
                TaskCode(error.get("errorCode", TaskCode.EXECUTION_ERROR)),
                error.get("message", "the task found nothing"),
                failed_step=error.get("failedStep", ""),
                details={
                    **(error.get("details") or {}),
                    "runId": answer["runId"],
                    "templateId": plan.template_id,
                },
            )
        output = answer["result"]
        if output_schema is not None:
            output = self._fitted(output, output_schema, answer["runId"])
        return {"runId": answer["runId"], "templateId": plan.template_id, "output": output}

    def _plan(self, goal: str, inputs: Mapping[str, Any]) -> Plan:
        plan = plan_by_rules(goal, inputs)
        if plan is None:
            raise TaskFailed(
                TaskCode.INVALID_PARAMETER,
                "no template follows from this goal and these inputs",
                failed_step="choose a template",
                details={"templates": list(self._toolset.runtime.templates)},
            )
        return plan

    def _fitted(self, found: Any, schema: Mapping[str, Any], run_id: str) -> Any:
        candidate = found
        errors = self._check(candidate, schema)
        if errors:
            candidate = shape(found, schema)
            errors = self._check(candidate, schema)
        if errors:
            raise TaskFailed(
                TaskCode.STEP_EXECUTION_FAILED,
                "the result does not fit outputSchema",
                failed_step="fit the result to outputSchema",
                details={"runId": run_id, "errors": list(errors)},
            )
        return candidate


def plan_by_rules(goal: str, inputs: Mapping[str, Any]) -> Plan | None:
    """The template that the inputs, or else the words of the goal, point to."""
    words = goal.lower()
    urls = inputs.get("urls") or ([inputs["url"]] if "url" in inputs else urls_in(goal))
    if not isinstance(urls, list):
        return Plan("batch_extract_pages", inputs)  # which says what is wrong with it
    start = inputs.get("startUrl")
    if "credentials" in inputs and start:
        return Plan("login_keep_session", inputs)
    if "pagination" in inputs and start:
        return Plan("paginated_extract", inputs)
    if "query" in inputs and start:
        return Plan("search_extract", inputs)
    if "fields" in inputs and start:
        return Plan("submit_and_verify", inputs)
    if not urls:
        return None
    if len(urls) == 1 and re.search(r"\bscreen ?shot|\bpicture of\b", words):
        return Plan("screenshot_page", {"url": urls[0]})
    if len(urls) == 1 and re.search(r"\bpdf\b|\bprint\b", words):
        return Plan("pdf_page", {"url": urls[0]})
    kept = {name: inputs[name] for name in ("extract", "concurrency", "compare") if name in inputs}
    if len(urls) > 1 and re.search(r"\bcompar|\bdiffer|\bversus\b|\bvs\b", words):
        return Plan("multi_tab_compare", {"urls": urls, **kept})
    kept.pop("compare", None)
    return Plan("batch_extract_pages", {"urls": urls, **kept})


def shape(found: Any, schema: Mapping[str, Any]) -> Any:
    """The parts of a result that a schema asks for by name, as far as there are any."""
    kind = schema.get("type")
    if kind == "array":
        rows = _rows(found)
        inner = schema.get("items")
        return [shape(row, inner) for row in rows] if isinstance(inner, dict) else rows
    if kind == "object":
        properties = schema.get("properties")
        if not isinstance(properties, dict):
            return found
        shaped: dict[str, Any] = {}
        for name, inner in properties.items():
            value = _named(found, name, inner if isinstance(inner, dict) else {})
            if value is not None:
                shaped[name] = value
        return shaped
    if kind == "string" and not isinstance(found, str):
        return _text(found)
    return found


def _named(found: Any, name: str, schema: Mapping[str, Any]) -> Any:
    if isinstance(found, dict):
        if name in found:
            value = found[name]
            return shape(value, schema) if schema.get("type") else value
        if schema.get("type") == "array" and _rows(found):
            return shape(found, schema)
        if name in {"text", "body", "content"} and "content" in found:
            return _text(found["content"])
        rows = _rows(found)
        if len(rows) == 1 and rows[0] is not found:
            return _named(rows[0], name, schema)
        for inner in ("page", "content", "metadata", "pageInfo"):
            if isinstance(found.get(inner), dict):
                value = _named(found[inner], name, schema)
                if value is not None:
                    return value
    return None


def _rows(found: Any) -> list[Any]:
    if isinstance(found, list):
        return found
    if isinstance(found, dict):
        for name in ("items", "pages", "snapshots", "links", "sections"):
            if isinstance(found.get(name), list):
                return [*found[name]]
    return []


def _text(found: Any) -> str:
    if isinstance(found, dict) and isinstance(found.get("sections"), list):
        return "\n".join(str(section.get("text", "")) for section in found["sections"])
    return found if isinstance(found, str) else msgspec.json.encode(found).decode()
