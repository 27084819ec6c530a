"""Log in and leave the session open for later runs. Credentials are typed, and kept nowhere."""

from collections.abc import Sequence
from typing import Final

import msgspec

from toolgate.browser.browser import ElementAbsent, Locator, Tab
from toolgate.contracts import tasks_v1 as wire
from toolgate.core.enums import LocatorMode, TaskCode, TrustLevel
from toolgate.tasks.state import TaskFailed
from toolgate.tasks.template import STEP_TIMEOUT_MS, TaskOutcome, Template, Work, wait_for

FIND_MS: Final = 5_000
PASSWORD: Final = Locator(LocatorMode.SELECTOR, "input[type=password]")
USERNAMES: Final = (
    Locator(LocatorMode.SELECTOR, "input[autocomplete=username]"),
    Locator(LocatorMode.SELECTOR, "input[type=email]"),
    Locator(LocatorMode.SEMANTIC, "username"),
    Locator(LocatorMode.SEMANTIC, "email"),
    Locator(LocatorMode.SEMANTIC, "user"),
    Locator(LocatorMode.SEMANTIC, "login"),
    Locator(LocatorMode.SELECTOR, "form:has(input[type=password]) input[type=text]"),
)


async def run(inputs: wire.LoginKeepSession, work: Work) -> TaskOutcome:
    work.check(inputs.start_url)
    async with work.page() as tab:
        work.step = "open the login page"
        await tab.visit(inputs.start_url)
        await _fill_in(tab, inputs, work)
        work.step = "wait for the login's outcome"
        success = await _is_logged_in(tab, inputs.success_indicator)
        cookies = await tab.cookie_count()
        result = wire.LoginResult(
            success=success,
            session_id=work.session_id,
            final_url=tab.url,
            title=await tab.title(),
            login_state="logged_in" if success else "rejected",
            cookies_saved=success and cookies > 0,
        )
    if success:
        work.keep_session()
    return TaskOutcome(
        msgspec.json.encode(result),
        success=success,
        message="" if success else "the site did not accept the login",
    )


async def _fill_in(tab: Tab, inputs: wire.LoginKeepSession, work: Work) -> None:
    fields, credentials = inputs.fields, inputs.credentials
    work.step = "find the username field"
    username = await _find(tab, _named(fields, "username", USERNAMES), work.step)
    guesses = _named(fields, "password", (PASSWORD,))
    work.step = "fill in the username"
    await tab.fill(username, credentials.username, timeout_ms=FIND_MS)
    if not (await tab.has(guesses[0]) or await tab.has(PASSWORD)):  # the name alone comes first
        await _submit(tab, fields, username)
        await tab.wait_stable(timeout_ms=FIND_MS)
    work.step = "find the password field"
    password = await _find(tab, guesses, work.step)
    work.step = "fill in the password"
    await tab.fill(password, credentials.password, timeout_ms=FIND_MS)
    work.step = "submit the login"
    await _submit(tab, fields, password)


async def _submit(tab: Tab, fields: wire.LoginFields, last: Locator) -> None:
    if isinstance(fields.submit, str):
        button = Locator(fields.mode, fields.submit)
        try:
            await tab.click(button, timeout_ms=FIND_MS)
        except ElementAbsent as absent:
            raise _missing("find the submit button") from absent
    else:
        await tab.press(last, "Enter", timeout_ms=FIND_MS)


async def _find(tab: Tab, guesses: Sequence[Locator], step: str) -> Locator:
    """The first guess that is there; the page gets its time once, not once for each."""
    if await tab.wait_any(guesses, timeout_ms=FIND_MS):
        for guess in guesses:
            if await tab.has(guess):
                return guess
    raise _missing(step)


def _named(fields: wire.LoginFields, name: str, guesses: Sequence[Locator]) -> Sequence[Locator]:
    """The locator that was given, else the guesses; by selector nothing is guessed."""
    given: str | msgspec.UnsetType = getattr(fields, name)
    if not isinstance(given, msgspec.UnsetType):
        return (Locator(fields.mode, given),)
    if fields.mode is LocatorMode.SELECTOR:
        step = f"find the {name} field"
        raise TaskFailed(
            TaskCode.TPL_LOGIN_FIELD_NOT_FOUND,
            f"`fields.{name}` must be a selector in mode selector (mode semantic looks for the field)",
            failed_step=step,
        )
    return guesses


def _missing(step: str) -> TaskFailed:
    return TaskFailed(TaskCode.TPL_LOGIN_FIELD_NOT_FOUND, f"could not {step}", failed_step=step)


async def _is_logged_in(tab: Tab, indicator: wire.SuccessIndicator | msgspec.UnsetType) -> bool:
    if not isinstance(indicator, msgspec.UnsetType):
        return await wait_for(tab, indicator, timeout_ms=STEP_TIMEOUT_MS)
    await tab.wait_stable(timeout_ms=STEP_TIMEOUT_MS)
    return not await tab.has(PASSWORD)


TEMPLATE = Template(
    id="login_keep_session",
    description="Log in to a site and keep the session; later runs use its sessionId.",
    inputs=wire.LoginKeepSession,
    output=wire.LoginResult,
    run=run,
    trust=frozenset({TrustLevel.LOCAL}),
    secrets=lambda inputs: (inputs.credentials.username, inputs.credentials.password),
    keeps_inputs=False,
)
