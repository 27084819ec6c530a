"""`http.fetch`: GET a URL through the guard; every hop is put to the policy again."""

from typing import Annotated

import msgspec

from toolgate.core.enums import Level, Outcome
from toolgate.core.errors import Invalid, Unavailable
from toolgate.core.tools import ToolOutput
from toolgate.tools.definitions import Args, Context, define, failed
from toolgate.tools.engines.redirects import Hops
from toolgate.web.web import Blocked, WebRequest, WebResponse

Headers = Annotated[dict[str, str], msgspec.Meta(max_length=64)]


class HttpFetchArgs(Args, frozen=True):
    url: Annotated[str, msgspec.Meta(min_length=1, max_length=8192)]
    headers: Headers = msgspec.field(default_factory=dict)


async def run(args: HttpFetchArgs, context: Context) -> ToolOutput:
    hops = Hops(context.request, context.permits)
    try:
        answer = await context.web.fetch(WebRequest(args.url, headers=args.headers), granted=hops)
    except (Invalid, Blocked) as refused:
        return failed(f"http.fetch: {refused}", outcome=hops.outcome(refused))
    except Unavailable as unavailable:
        return failed(f"http.fetch: {unavailable}", outcome=Outcome.MAY_HAVE_EXECUTED)
    return _output(answer)


def _output(answer: WebResponse) -> ToolOutput:
    failure = answer.status >= 400
    return ToolOutput(
        exit_code=1 if failure else 0,
        stdout=answer.body.decode("utf-8", "replace"),
        stderr=f"HTTP {answer.status}" if failure else "",
        data={
            "status": answer.status,
            "url": answer.url,
            "headers": answer.joined_headers(),
            "truncated": answer.truncated,
        },
        truncated=answer.truncated,
    )


TOOL = define(
    "http.fetch",
    description="Get a public URL. Private and local addresses cannot be reached.",
    level=Level.READ,
    repeatable=True,
    args=HttpFetchArgs,
    run=run,
)
