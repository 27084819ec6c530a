"""Ways around an allow list of commands: each tried by the parser that ships, none let through."""

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgate.core.enums import Level
from toolgate.core.tools import ToolRequest
from toolgate.policy.compile import compile_policy
from toolgate.policy.decide import decide
from toolgate.policy.model import Effect
from toolgate.policy.shell import MAX_TEXT, TooComplex
from toolgate.policy.shell_parser import TreeSitterShellParser

PARSE = TreeSitterShellParser()
ALLOW_LIST = compile_policy(
    {
        "version": 1,
        "rules": [
            {
                "id": "reading",
                "allow": ["shell", "bash.exec", "exec"],
                "match": {"command": ["ls *", "cat *", "git status*", "git log", "echo *", "id"]},
                "reason": "It only reads",
            }
        ],
    },
    name="policy.default",
)

BYPASSES = [
    # more commands than one
    "ls; rm -rf /",
    "ls && rm -rf /",
    "ls || rm -rf /",
    "ls | sh",
    "ls |& sh",
    "ls & rm -rf /",
    "ls &",
    "ls\nrm -rf /",
    "ls\n\nrm -rf /\n",
    "ls\r\nrm -rf /",
    "ls\rrm -rf /",
    "ls;\trm -rf /",
    "ls;;rm -rf /",
    "ls ; : ; rm -rf /",
    "ls;rm${IFS}-rf${IFS}/",
    "ls \\\n; rm -rf /",
    "ls -la #\nrm -rf /",
    "ls\x0brm -rf /",
    "ls\x0crm -rf /",
    "ls\x00; rm -rf /",
    "ls\u2028rm -rf /",
    "ls\u0085rm -rf /",
    # commands inside words
    "ls $(rm -rf /)",
    "ls `rm -rf /`",
    'ls "$(rm -rf /)"',
    'ls "`rm -rf /`"',
    "ls <(rm -rf /)",
    "ls >(rm -rf /)",
    "ls $((`rm -rf /`))",
    "ls ${x:-$(rm -rf /)}",
    'ls "${x:=`rm -rf /`}"',
    "ls ${x@P}",
    "ls $[$(rm -rf /)]",
    "ls ${!x}",
    'ls "a"$(rm -rf /)"b"',
    "ls 'a'`rm -rf /`",
    "echo ${a[$(rm -rf /)]}",
    # redirections and here-documents
    "ls > /etc/passwd",
    "ls >> ~/.bashrc",
    "ls >| x",
    "ls &> x",
    "ls >& x",
    "ls 2> x",
    "ls 1<> x",
    "ls < /etc/shadow",
    "> x ls",
    "ls>x",
    "cat << EOF\n$(rm -rf /)\nEOF",
    "cat << 'EOF' > x\nboo\nEOF",
    "cat <<- EOF\n\t`rm -rf /`\n\tEOF",
    "cat <<< $(rm -rf /)",
    "cat <<EOF | sh\nrm -rf /\nEOF",
    # the environment
    "LD_PRELOAD=/tmp/x.so ls",
    "PATH=/tmp ls",
    "PATH=/tmp; ls",
    "IFS=x; ls",
    "export PATH=/tmp; ls",
    "declare -x PATH=/tmp; ls",
    "a=1 b=2 git status",
    "GIT_PAGER='rm -rf /' git log",
    "a[$(rm -rf /)]=1 ls",
    "BASH_ENV=x ls",
    # names that are not what they look like
    "$SHELL -c 'rm -rf /'",
    "${x:-rm} -rf /",
    "$'rm' -rf /",
    "$'\\x72\\x6d' -rf /",
    "l$'s' -la",
    '$"ls" -la',
    "l\\s",
    "\\ls",
    "/bin/l?",
    "/bin/l* -la",
    "[l]s",
    "l{s,x}",
    "{ls,-la}",
    "{rm,-rf,/}",
    "~/ls",
    "/tmp/ls",
    "./ls",
    "../bin/ls",
    "ls/../rm -rf /",
    "lѕ -la",
    "ｌｓ",
    "ls\u00a0-la",
    "\u00a0ls",
    "ls\u200b",
    "l\u00ads",
    "\u202els",
    "LS",
    "''",
    "'' ls",
    "'ls -la'",
    '"git status"',
    # arguments that only the shell knows
    "ls *",
    "ls ?",
    "ls [a-z]",
    "ls ~",
    "ls ~root",
    "ls $HOME",
    "ls ${HOME}",
    'ls "$HOME"',
    "ls {a,b}",
    "ls {1..9}",
    "ls $@",
    "ls !!",
    "ls !(a)",
    "ls +(a)",
    "ls $(echo -la)",
    "ls a\\ b",
    'ls "a\\"b"',
    "ls $IFS",
    "ls 'a\nb'",
    # compound commands
    "(ls)",
    "{ ls; }",
    "! ls",
    "if ls; then rm -rf /; fi",
    "while ls; do rm -rf /; done",
    "until ls; do :; done",
    "for x in a; do ls; done",
    "case x in x) rm -rf / ;; esac",
    "select x in a; do ls; done",
    "ls() { rm -rf /; }; ls",
    "function ls { rm -rf /; }; ls",
    "coproc ls",
    "time ls",
    "[[ -f x ]] && ls",
    "[ -f x ] && ls",
    "test -f x && ls",
    "((x=1)); ls",
    "let x=1; ls",
    # programs that run others
    "env ls",
    "env -i ls",
    "sudo ls",
    "xargs ls",
    "ls | xargs rm",
    "bash -c ls",
    "sh -c 'ls'",
    "command ls",
    "builtin echo x",
    "exec ls",
    "eval ls",
    "eval 'ls'",
    ". ls",
    "source ls",
    "nohup ls",
    "timeout 5 ls",
    "nice ls",
    "busybox ls",
    "find . -exec ls {} +",
    "alias ls='rm -rf /'; ls",
    "alias ls=rm\nls",
    "hash -p /bin/rm ls; ls",
    "enable -f x ls; ls",
    "trap 'rm -rf /' EXIT; ls",
    "set -- x; ls",
    "shopt -s expand_aliases; ls",
    "printf -v PATH /tmp; ls",
    "read x; ls",
    "unset PATH; ls",
    "cd /; ls",
    # not what was allowed
    "git log --output=x",
    "git log -1",
    "id -u",
    "git",
    "git push",
    "git -c core.pager=rm status",
    "git --exec-path=/tmp status",
    # broken
    "ls '",
    'ls "',
    "ls $(",
    "ls `",
    "ls (",
    "ls )",
    "ls |",
    "ls &&",
    "| ls",
    "ls \\",
    "ls ${",
    'ls =="x"',  # the grammar reads two words here, bash one
    "",
    " ",
    "\n",
    "#",
    "ls \ud800",
]


@pytest.mark.parametrize(
    ("tool", "argument"), [("shell", "command"), ("bash.exec", "cmd"), ("exec", "cmd")]
)
def test_no_bypass_is_allowed(tool: str, argument: str) -> None:
    for text in BYPASSES:
        call = ToolRequest("r", tool, {argument: text})
        decision = decide(ALLOW_LIST, call, level=Level.READ, parse_shell=PARSE)
        assert decision.effect is Effect.DENY, text


def test_there_are_many_bypasses_and_none_twice() -> None:
    assert len(BYPASSES) == len(set(BYPASSES)) >= 180


PLAIN = [
    "ls",
    "  ls  -la\t/tmp ",
    "ls 'a b' \"c; rm -rf /\"",
    "git status && git log",
    "git status | cat -",
    "ls; cat a.txt\necho done",
    "l''s",
    "'ls' -la",
    "echo '$(rm -rf /)'",
    "echo 'ünïcödé is fine in quotes'",
    "echo a=b x:y 50% --flag=v,w +z @me",
]


def test_plain_commands_of_the_list_are_allowed() -> None:
    for text in PLAIN:
        call = ToolRequest("r", "shell", {"command": text})
        decision = decide(ALLOW_LIST, call, level=Level.READ, parse_shell=PARSE)
        assert decision.effect is Effect.ALLOW, text


DESTRUCTIVE = compile_policy(
    {
        "version": 1,
        "rules": [
            {"id": "all", "allow": "shell", "match": "any", "reason": "All of it"},
            {
                "id": "destroys",
                "deny": "shell",
                "match": {"command": ["rm ** -rf *", "mkfs*"]},
                "reason": "Cannot be undone",
            },
        ],
    },
    name="policy.default",
)


DENIED = [
    "rm -rf /",
    "ls; rm -rf /",
    "ls $(rm -rf /)",
    "ls `rm -rf /`",
    'echo "a $(rm -rf /) b"',
    "cat <(rm -rf /)",
    "cat <<EOF\n$(rm -rf /)\nEOF",
    "cat <<< $(rm -rf /)",
    "x=$(rm -rf /)",
    "export x=$(rm -rf /)",
    "(rm -rf /)",
    "{ rm -rf /; }",
    "if true; then rm -rf /; fi",
    "f() { rm -rf /; }",
    "case x in x) rm -rf / ;; esac",
    "for x in 1; do rm -rf /; done",
    "! rm -rf /",
    "rm -rf / > x",
    "> x rm -rf /",
    "a=1 rm -rf /",
    "rm -rf / &",
    "true |& rm -rf /",
    "'rm' \"-rf\" /",
    "r\\m -rf /",
    "\\rm -rf /",
    "r''m -rf /",
    "$'\\x72m' -rf /",
    "$'r''m' -rf /",
    "/bin/rm -rf /",
    "./../bin/rm x -rf y",
    "$X -rf /",
    "rm $X",
    'rm "$X" /',
    "rm $(echo -rf) /",
    "rm -r* /",
    "sudo rm -rf /",
    "sudo -u x -- rm -rf /",
    "prlimit --nproc=5 rm -rf /",
    "taskset 1 rm -rf /",
    "systemd-run rm -rf /",
    "linux64 rm -rf /",
    "env A=1 rm -rf /",
    "xargs rm -rf x",
    "timeout 5 nice rm -rf /",
    "bash -c 'rm -rf /'",
    "bash -c \"bash -c 'rm -rf /'\"",
    "sudo sh -c 'ls && rm -rf /'",
    "eval 'rm -rf /'",
    "eval rm -rf /",
    "eval 'rm' '-rf /'",
    "eval rm '-rf' \"/$X\"",
    "eval -- 'r''m' '-rf /'",
    # values that are one word with their option
    "env -S'rm -rf /'",
    "env --split-string='rm -rf /'",
    "env -iSrm -rf /",
    "su -c'rm -rf /'",
    "su -lc'rm -rf /' root",
    "su --command='rm -rf /' root",
    "script -qc'rm -rf /' x",
    "ssh -oProxyCommand='rm -rf /' host",
    "ssh -o 'ProxyCommand=rm -rf /' host",
    "alias x='rm -rf /'; x",
    "rbash -c 'rm -rf /'",
    "runcon x rm -rf /",
    "ssh host 'rm -rf /'",
    "find . -exec rm -rf {} +",
    "command rm -rf /",
    "trap 'rm -rf /' EXIT",
    "mkfs.ext4 /dev/sda",
    "[[ $(rm -rf /) ]]",
    "(( $(rm -rf /) ))",
    "ls ' ; rm -rf /",
    "ls \x01; rm -rf /",
    "rm -rf / '",
    "r'm' -rf / (",
    # words behind a redirection
    "rm > x -rf /",
    "rm 2>&1 -rf /",
    "rm 2>&- -rf /",
    "rm > x -rf > y /",
    "true && rm > x -rf /",
    "! rm > x -rf /",
    "rm << EOF -rf /\nboo\nEOF",
    "rm << EOF > x -rf /\nboo\nEOF",
    # words and commands that the grammar takes apart, or together
    "rm -r\\\nf /",
    "r\\\nm -rf /",
    "rm '-'\\rf /",
    "bash -c 'rm'\\ '-rf /'",
    "echo ${ rm -rf /; }",
    "echo ${| rm -rf /; }",
    'rm -r$"f" /',
    'r$"m" -rf /',
    "ls\n\\rm -rf /",
    "ls\n\\\nrm -rf /",
    "ls # x\n\\rm -rf /",
    "ls > x\n\\rm -rf /",
    "! for x in 1; do rm -rf /; done",
    # $'...' as bash has it
    "$'rm\\0x' -rf /",
    "$'\\562m' -rf /",
    "$'\\u72m' -rf /",
    "$'\\x{72}m' -rf /",
    # substitutions that the grammar takes for text
    "echo ${x:-`rm -rf /`}",
    "echo `echo \\`rm -rf /\\``",
    'echo "${x:-`rm -rf /`}"',
    "cat <<EOF\nx `rm -rf /` y\nEOF",
    "cat <<EOF\n${x:-`rm -rf /`}\nEOF",
    # here-documents whose end the grammar does not find, and those that a shell reads
    "cat <<E; ls\nx\nE\nrm -rf /",
    "bash <<EOF\nrm -rf /\nEOF",
    "<<EOF bash\nrm -rf /\nEOF",
    "cat <<END_OF_IT\n`rm -rf /`\nEND_OF_IT",
    "sudo bash -s > x <<'EOF'\nls\nrm -rf /\nEOF",
    "bash <<< 'rm -rf /'",
    "source /dev/stdin <<< 'rm -rf /'",
    # what no grammar reads
    "echo '\u00a0'; $'\\x72m' -rf /",
    "echo '\u00a0'; r${x}m -rf /",
    "echo '\u00a0'; $(echo rm) -rf /",
    "echo '\u00a0'; `echo rm` -rf /",
    "echo '\u00a0'; r\\\nm -rf /",
    "echo '\u00a0'; /bin/r? -rf /",
    "echo '\u00a0'; {rm,-rf,/}",
    "echo '\u00a0'; rm > x -rf /",
    "echo '\u00a0'; if x=1 rm -rf /; then ls; fi",
]


def test_a_deny_fires_on_any_part() -> None:
    for text in DENIED:
        call = ToolRequest("r", "shell", {"command": text})
        decision = decide(DESTRUCTIVE, call, level=Level.READ, parse_shell=PARSE)
        assert (decision.effect, decision.rule_id) == (Effect.DENY, "destroys"), text


HARMLESS = [
    "rm x",
    "echo rm -rf /",
    "echo 'rm -rf /'",
    "rm /tmp/$X",
    "ls rm",
    "grep -rf rm",
    "env -S'ls -la' A=rm x",
    "alias rm='ls -la'",
    "rm -r x",
    "rm x > -rf",
    "rm x 2>&1 | cat",
    "rm \\\n x",
    'git commit -m "the \\`rm -rf /\\` of it"',
    "cat > x <<'EOF'\nrm -rf / `ls`\nEOF",
    "cat <<EOF\n$(date) and `hostname`, not \\`rm -rf /\\`\nEOF",
    "bash <<EOF\nls $X\nEOF",
    "echo $'rm\\n-rf'",
    "cat > x <<EOF\n$(date)\n" + "a line\n" * 1000 + "EOF",
    "echo '\u00a0' $X ${Y} *.txt > x",
    'for x in *; do\n  cat $x  # not rm -rf /\ndone\necho "$(date)"',
]


def test_a_deny_does_not_fire_on_what_only_looks_like_it() -> None:
    for text in HARMLESS:
        call = ToolRequest("r", "shell", {"command": text})
        decision = decide(DESTRUCTIVE, call, level=Level.READ, parse_shell=PARSE)
        assert decision.rule_id == "all", text


TOO_MUCH = [
    "ls " + "x" * MAX_TEXT,
    "ls;" * 3000,
    "a|" * 500,
    "(" * 5000,
    "=~ " * 10_000,
    "a) ++--a=b " * 2900,
    "a && " * 1000 + "a",
    "sudo " + "a " * 500,
    "bash -c 'bash -c \"bash -c \\'x y\\'\"' " * 200,
    "?a" * 15_000,
    ("((" + '"' * 13) * 1995,
    "== " * 10_000,
    "bash -c '" + "?a" * 15_000 + "'",
]


def test_a_command_beyond_the_limits_is_denied_and_says_so() -> None:
    for text in TOO_MUCH:
        call = ToolRequest("r", "shell", {"command": text})
        decision = decide(DESTRUCTIVE, call, level=Level.READ, parse_shell=PARSE)
        assert (decision.effect, decision.rule_id) == (Effect.DENY, "limit_reached"), text[:80]


LONG_BUT_SIMPLE = [
    "cat > x <<'E'\n" + "if a == b: c(d[0])  # it's\n" * 900 + "E",
    "echo 'é " + "日" * 10_000 + "' x",
    "python3 -c '" + 'print("a b", [1, 2])\n' * 900 + "'",
]


def test_a_long_command_that_a_grammar_reads_with_ease_is_within_the_limits() -> None:
    for text in LONG_BUT_SIMPLE:
        call = ToolRequest("r", "shell", {"command": text})
        decision = decide(DESTRUCTIVE, call, level=Level.READ, parse_shell=PARSE)
        assert decision.rule_id == "all", text[:80]


shell_texts = st.text(alphabet="ab '\"\\$`(){}[]<>|&;\n\t*?~!#=é\r", max_size=24)


@given(text=st.one_of(st.text(max_size=30), shell_texts))
def test_any_text_is_read_or_too_complex(text: str) -> None:
    try:
        script = PARSE(text)
    except TooComplex:
        return
    assert (script.argvs is None) is bool(script.obstacle)
    assert all(script.commands)


BASH = shutil.which("bash") or ""
REPORT = r"""
command_not_found_handle() { printf '%s\x1f' "$@"; printf '\x1e'; }
"""


@pytest.mark.skipif(not BASH, reason="needs bash to compare with")
@given(text=st.text(alphabet="xyz '\"=.-;|&\n\t", min_size=1, max_size=20))
def test_what_is_read_as_static_is_what_bash_would_run(text: str) -> None:
    argvs = PARSE(text).argvs
    if argvs is None or any(argv[0] in {"", ".", ":"} or "/" in argv[0] for argv in argvs):
        return
    ran = subprocess.run(
        [BASH, "--norc", "-c", f"{REPORT}\n{text}"],
        capture_output=True,
        env={"PATH": "/nonexistent"},
        timeout=10,
        check=False,
    )
    seen = [tuple(each.split("\x1f")[:-1]) for each in ran.stdout.decode().split("\x1e")[:-1]]
    # Behind a pipe or `||` a command's report goes elsewhere, so bash may show fewer, never others.
    assert set(seen) <= set(argvs)
    if not set(text) & set("|&"):
        assert seen == list(argvs)
