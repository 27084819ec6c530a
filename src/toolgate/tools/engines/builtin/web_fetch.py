"""`web.fetch`: GET, HEAD or POST through the guard; the gateway contract's system action."""

from typing import Annotated, Literal

import msgspec

from toolgate.core.enums import Level, Outcome
from toolgate.core.errors import Invalid, Unavailable
from toolgate.core.tools import ToolOutput
from toolgate.tools.definitions import UPSTREAM, Args, Context, define, failed, refused
from toolgate.tools.engines.redirects import Hops
from toolgate.web.web import Blocked, WebRequest, WebResponse

Headers = Annotated[dict[str, str], msgspec.Meta(max_length=64)]


class WebFetchArgs(Args, frozen=True):
    url: Annotated[str, msgspec.Meta(min_length=1, max_length=8192)]
    method: Literal["GET", "POST", "HEAD"] = "GET"
    headers: Headers = msgspec.field(default_factory=dict)
    body: Annotated[str, msgspec.Meta(max_length=512 * 1024)] = ""


async def run(args: WebFetchArgs, context: Context) -> ToolOutput:
    if args.body and args.method != "POST":
        return refused("web.fetch: only a POST has a body")
    if args.body and context.holds_secret(args.body):
        return refused("web.fetch: the body holds a secret")
    hops = Hops(context.request, context.permits)
    request = WebRequest(
        args.url, method=args.method, headers=args.headers, body=args.body.encode()
    )
    try:
        answer = await context.web.fetch(request, granted=hops)
    except (Invalid, Blocked) as blocked:
        return refused(f"web.fetch: {blocked}", outcome=hops.outcome(blocked))
    except Unavailable as unavailable:
        return failed(f"web.fetch: {unavailable}", outcome=Outcome.MAY_HAVE_EXECUTED, code=UPSTREAM)
    return _output(answer)


def _output(answer: WebResponse) -> ToolOutput:
    """Whatever the status: that the server said no is an answer."""
    return ToolOutput(
        exit_code=0,
        data={
            "url": answer.url,
            "status": answer.status,
            "headers": answer.joined_headers(),
            "bodyText": answer.body.decode("utf-8", "replace"),
            "truncated": answer.truncated,
        },
        truncated=answer.truncated,
    )


TOOL = define(
    "web.fetch",
    description="Ask a public URL by GET, HEAD or POST. Private and local addresses are refused.",
    level=Level.READ,  # gateway contract
    repeatable=False,  # it may be a POST
    args=WebFetchArgs,
    run=run,
)
