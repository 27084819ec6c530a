"""Fill in a form, submit it once, and check that it was accepted."""

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from toolgate.contracts import tasks_v1 as wire
from toolgate.contracts.wire import CamelWire
from toolgate.secrets.addresses import without_password
from toolgate.secrets.redaction import is_sensitive
from toolgate.tasks.items import item_of
from toolgate.tasks.template import (
    NOTICE,
    STEP_TIMEOUT_MS,
    TaskOutcome,
    Template,
    Work,
    locator_of,
    options_of,
    wait_for,
)

_SECRET: Final = re.compile(r"pass|secret|token|pin|cvv|cvc|card|iban|otp|credential", re.I)


async def run(inputs: wire.SubmitAndVerify, work: Work) -> TaskOutcome:
    work.check(inputs.start_url)
    total = len(inputs.fields) + 2
    async with work.page() as tab:
        work.step = "open the form"
        await tab.visit(inputs.start_url)
        for number, field in enumerate(inputs.fields, 1):
            work.report(number, total)
            work.step = f"fill in {field.name}"
            await tab.fill(locator_of(field.locator), field.value, timeout_ms=STEP_TIMEOUT_MS)
        work.step = "submit the form"
        if not isinstance(inputs.submit, msgspec.UnsetType):
            await tab.click(locator_of(inputs.submit), timeout_ms=STEP_TIMEOUT_MS)
        elif inputs.fields:
            last = locator_of(inputs.fields[-1].locator)
            await tab.press(last, "Enter", timeout_ms=STEP_TIMEOUT_MS)
        work.step = "verify the outcome"
        indicator = inputs.success_indicator
        if isinstance(indicator, msgspec.UnsetType):
            came_to_rest = await tab.wait_stable(timeout_ms=STEP_TIMEOUT_MS)
            success = came_to_rest and not tab.unanswered
        else:
            success = await wait_for(tab, indicator, timeout_ms=STEP_TIMEOUT_MS)
        message = "" if success else _why_not(tab.unanswered)
        looked = await tab.extract(options_of(inputs.extract))
        item = await item_of(without_password(looked.url), looked, work, inputs.extract)
        if success and not item["success"]:
            success, message = False, item["error"]["message"]
        result: dict[str, Any] = {
            "success": success,
            "finalUrl": tab.url,
            "title": looked.title,
            "fields": [field.name for field in inputs.fields],
            "page": item,
            "notice": NOTICE,
        }
    return TaskOutcome(
        msgspec.json.encode(result),
        success=success,
        message=message,
    )


def _why_not(question: str) -> str:
    if question:
        return f"the page asked {question!r}, was told no, and stayed where it was"
    return "the sign of success did not appear after the form was sent"


def _secrets(inputs: wire.SubmitAndVerify) -> Sequence[str]:
    """A page may well say again what was typed; only what looks secret is taken out."""
    return [
        field.value
        for field in inputs.fields
        if is_sensitive(field.name)
        or _SECRET.search(f"{field.name} {field.locator.selector} {field.locator.query}")
    ]


class SubmitResult(CamelWire):
    success: bool
    final_url: str
    title: str
    fields: list[str]
    page: wire.PageItem


TEMPLATE = Template(
    id="submit_and_verify",
    description="Fill in a form, submit it, and verify the outcome by an indicator.",
    inputs=wire.SubmitAndVerify,
    output=SubmitResult,
    run=run,
    secrets=_secrets,
    keeps_inputs=False,
    steps=lambda inputs: len(inputs.fields) + 2,
)
