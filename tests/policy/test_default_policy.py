"""The policy that ships: what a newcomer may do with it, and what nobody may."""

from typing import Any

import pytest

from toolgate.core.enums import Level
from toolgate.core.tools import ToolRequest
from toolgate.policy.decide import decide
from toolgate.policy.file import default_policy_text, load_policy
from toolgate.policy.model import Effect
from toolgate.policy.shell_parser import TreeSitterShellParser

PARSE = TreeSitterShellParser()
POLICY = load_policy(default_policy_text(), parse_shell=PARSE)


def effect(tool: str, args: dict[str, Any], level: Level = Level.WRITE) -> Effect:
    call = ToolRequest("r", tool, args)
    return decide(POLICY, call, level=level, parse_shell=PARSE).effect


@pytest.mark.parametrize(
    ("tool", "args", "level"),
    [
        ("echo", {"text": "hi"}, Level.READ),
        ("math.add", {"a": 1, "b": 2}, Level.READ),
        ("text.upper", {"text": "hi"}, Level.READ),
        ("kv.get", {"key": "x"}, Level.READ),
        ("file.read", {"path": "README.md"}, Level.READ),
        ("file.list", {"path": "src"}, Level.READ),
        ("shell", {"command": "ls -la src"}, Level.WRITE),
        ("shell", {"command": "cat README.md | head -20"}, Level.WRITE),
        ("bash.exec", {"cmd": "git status"}, Level.WRITE),
        ("exec", {"command": "ls", "params": ["-la"]}, Level.WRITE),
        ("exec", {"cmd": "ls -la"}, Level.WRITE),
        ("http.fetch", {"url": "https://example.com/"}, Level.READ),
        ("web.fetch", {"url": "https://api.github.com/zen", "method": "GET"}, Level.READ),
        ("web.search", {"query": "gates"}, Level.READ),
        ("browser.pdf_page", {"url": "https://news.example.net/"}, Level.READ),
        ("mcp.docs.search", {"q": "x"}, Level.READ),
    ],
)
def test_reading_is_allowed(tool: str, args: dict[str, Any], level: Level) -> None:
    assert effect(tool, args, level) is Effect.ALLOW


@pytest.mark.parametrize(
    ("tool", "args", "level"),
    [
        ("kv.set", {"key": "x", "value": "y"}, Level.WRITE),
        ("file.write", {"path": "x", "content": "y"}, Level.WRITE),
        ("file.read", {"path": ".env"}, Level.READ),
        ("shell", {"command": "make"}, Level.WRITE),
        ("shell", {"command": "rm notes.txt"}, Level.WRITE),
        ("bash.exec", {"cmd": "npm test"}, Level.WRITE),
        ("python.exec", {"code": "1"}, Level.WRITE),
        ("exec", {"cmd": "ls", "env": {"LD_PRELOAD": "x"}}, Level.WRITE),
        ("web.fetch", {"url": "https://example.com/", "method": "POST"}, Level.READ),
        ("payments.transfer", {"amount": 1}, Level.SIGN),
        ("mcp.playwright.click", {"selector": "#x"}, Level.WRITE),
        ("mcp.docs.search", {"q": "x"}, Level.SIGN),
        ("browser.submit_and_verify", {"startUrl": "https://example.com/"}, Level.WRITE),
        ("browser.submit_and_verify", {"startUrl": "https://example.com/"}, Level.READ),
        ("browser.login_keep_session", {}, Level.WRITE),
        ("browser.task", {"goal": "Order a pizza"}, Level.WRITE),
        ("browser.run_task_template", {"templateId": "submit_and_verify"}, Level.WRITE),
    ],
)
def test_changes_ask(tool: str, args: dict[str, Any], level: Level) -> None:
    assert effect(tool, args, level) is Effect.ASK


@pytest.mark.parametrize(
    ("tool", "args"),
    [
        ("shell", {"command": "rm -rf /"}),
        ("shell", {"command": "rm -fr ."}),
        ("shell", {"command": "rm x -r"}),
        ("bash.exec", {"cmd": "mkfs /dev/sda"}),
        ("bash.exec", {"cmd": "dd if=/dev/zero of=/dev/sda"}),
        ("exec", {"command": "shutdown", "params": ["now"]}),
        ("shell", {"command": "echo hi; reboot"}),
        ("shell", {"command": "git push --force origin main"}),
        ("http.fetch", {"url": "https://evil.test/"}),
        ("http.fetch", {"url": "http://169.254.169.254/"}),
        ("web.fetch", {"url": "https://evil.test/", "method": "POST"}),
        ("browser.pdf_page", {"url": "http://localhost/"}),
        ("nuclear.launch", {}),
    ],
)
def test_what_cannot_be_undone_and_what_nobody_spoke_of_is_denied(
    tool: str, args: dict[str, Any]
) -> None:
    assert effect(tool, args) is Effect.DENY


@pytest.mark.parametrize(
    "command",
    [
        "git log --output=x",
        "git log -p --output x",
        "git log -n 5 --output=x",
        "git log --oneline -5 --output=x",
        "git diff --output=x",
        "git diff --ext-diff",
        "git show --output=x",
        "git -c core.fsmonitor=evil status",
        "git --git-dir=/tmp/x status",
        "git status --untracked-files=all extra",
        "git branch new",
        "git tag v1",
        "git remote -v add x",
        "find . -exec touch x ;",
        "find . -fprint x",
        "find .",
        "sed -i s/a/b/ x",
        "sed 1e",
        "sed -n p x",
        "awk 'BEGIN{system(0)}'",
        "tar -xf x --to-command=sh",
        "tar -cf x --checkpoint-action=exec=sh",
        "sort -o x y",
        "sort --compress-program=sh x",
        "uniq a b",
        "xxd a b",
        "tree -o x",
        "rg --pre sh x",
        "printf -v PATH x",
        "env",
        "env ls",
        "xargs ls",
        "less x",
        "man x",
        "vi x",
        "date -s now",
        "hostname evil",
        "curl https://example.com",
        "wget https://example.com",
        "python3 -c 1",
        "perl -e 1",
        "node -e 1",
        "tee x",
        "cp a b",
        "mv a b",
        "ln -s a b",
        "chmod 777 x",
        "truncate -s0 x",
        "cat x > y",
        "ls `id`",
        "file -C -m x",
        "diff --to-file x",
        "cd / ",
        "hash -p x ls",
        "zip -T -TT sh x y",
        "split --filter=sh x",
        "cat .env",
        "grep x /proc/self/environ",
    ],
)
def test_no_known_trap_is_allowed(command: str) -> None:
    assert effect("shell", {"command": command}) is not Effect.ALLOW


def test_there_is_a_list_of_hosts_to_edit() -> None:
    text = default_policy_text().replace("- example.com\n", "- my-own-host.test\n")
    policy = load_policy(
        text.replace('url: "https://example.com/"', 'url: "https://my-own-host.test/"'),
        parse_shell=PARSE,
    )
    call = ToolRequest("r", "http.fetch", {"url": "https://my-own-host.test/x"})
    assert decide(policy, call, level=Level.READ, parse_shell=PARSE).effect is Effect.ALLOW
