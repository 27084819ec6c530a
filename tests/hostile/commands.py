"""Commands that try to run code, or to read a secret, where the policy allows only reading.

Each is decided by the policy and, where that allows it, run in a sandbox by the engines behind the
gate. `setup` stands for what a person approved before: it runs in the session without a decision.
"""

from dataclasses import dataclass
from typing import Any, Final

MARK: Final = "/tmp/PWNED"
RUN: Final = f"touch {MARK}"
SECRET: Final = "hunter2-canary"


@dataclass(frozen=True, slots=True)
class Attack:
    kind: str
    name: str
    args: dict[str, Any]
    tool: str = "shell"
    setup: str = ""
    shipped: bool = False  # decided by the policy that ships, else by one that allows the words


ATTACKS: list[Attack] = []

_COMMIT = "git init -q; git config user.name a; git config user.email a@b; "
_COMMIT += "echo one > f; git add f; git commit -qm one; echo two > f; "
_BARE = "mkdir -p d/objects d/refs; echo 'ref: refs/heads/main' > d/HEAD; "

# Code by configuration: the shipped policy allows each of these words as reading.
_CONFIGURED = {
    "fsmonitor": f"git config core.fsmonitor '{RUN};:'",
    "fsmonitor-program": f"printf '#!/bin/sh\\n{RUN}\\n' > m; chmod +x m; "
    'git config core.fsmonitor "$PWD/m"',
    "filter-clean": f"git config filter.x.clean '{RUN}; cat'; echo '* filter=x' > .gitattributes",
    "filter-process": f"git config filter.x.process '{RUN}'; echo '* filter=x' > .gitattributes",
    "filter-in-info": f"git config filter.x.clean '{RUN}; cat'; echo '* filter=x' > .git/info/attributes",
    "textconv": f"git config diff.x.textconv '{RUN}; cat'; echo '* diff=x' > .gitattributes",
    "diff-driver": f"git config diff.x.command '{RUN};:'; echo '* diff=x' > .gitattributes",
    "external-diff": f"git config diff.external '{RUN};:'",
    "pager": f"git config core.pager '{RUN}; cat'; git config pager.log '{RUN}; cat'",
    "signer": f"git config log.showSignature true; git config gpg.program '{RUN};:'",
    "hooks": f"printf '#!/bin/sh\\n{RUN}\\n' > .git/hooks/post-index-change; "
    "chmod +x .git/hooks/post-index-change; touch -d 2001-01-01 f",
    "include": f"printf '[core]\\nfsmonitor = {RUN};:\\n' > inc; git config include.path ../inc",
    "home": f"printf '[core]\\nfsmonitor = {RUN};:\\n' > ~/.gitconfig",
    "xdg": f"mkdir -p ~/.config/git; printf '[core]\\nfsmonitor = {RUN};:\\n' > ~/.config/git/config",
    "environment": f"export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=core.fsmonitor GIT_CONFIG_VALUE_0='{RUN};:'",
    "parameters": f"export GIT_CONFIG_PARAMETERS=\"'core.fsmonitor'='{RUN};:'\"",
    "external-diff-variable": f"export GIT_EXTERNAL_DIFF='{RUN};:'",
    "exec-path": f"mkdir x; printf '#!/bin/sh\\n{RUN}\\n' > x/git-status; chmod +x x/*; export GIT_EXEC_PATH=$PWD/x",
    "promisor": "git config extensions.partialClone o; git config remote.o.promisor true; "
    f"git config remote.o.url $PWD/f; git config remote.o.uploadpack '{RUN};:'; "
    "rm -rf .git/objects/??",
    "submodule": "git init -q s; (cd s; git config user.name a; git config user.email a@b; "
    "echo 1 > g; git add g; git commit -qm s); git add s 2>/dev/null; git commit -qm sub; "
    f"(cd s; git config core.fsmonitor '{RUN};:'; echo 2 > g)",
    "worktree-config": f"git config extensions.worktreeConfig true; git config --worktree core.fsmonitor '{RUN};:'",
    "alias": f"git config alias.status '!{RUN}'; git config alias.log '!{RUN}'",
}
for _name, _config in _CONFIGURED.items():
    for _command in ("git status", "git log --stat -1", "git diff --stat", "git branch -v"):
        ATTACKS.append(
            Attack(
                "code by configuration",
                f"{_name} {_command}",
                {"command": _command},
                setup=_COMMIT + _config,
                shipped=True,
            )
        )
    ATTACKS.append(
        Attack(
            "code by configuration",
            f"{_name} exec",
            {"command": "git", "params": ["status"]},
            tool="exec",
            setup=_COMMIT + _config,
            shipped=True,
        )
    )
    for _command in ("git diff", "git show", "git log -p"):
        ATTACKS.append(
            Attack(
                "code by configuration",
                f"{_name} {_command}",
                {"command": _command},
                setup=_COMMIT + _config,
            )
        )
_EMBEDDED = (
    f"{_BARE}mkdir d/w; printf '[core]\\nrepositoryformatversion = 0\\nbare = false\\nworktree = w\\n"
    f'fsmonitor = "{RUN};:"\\n\' > d/config; cd d'
)
ATTACKS += [
    Attack("code by configuration", f"embedded bare repository {command}", {"command": command},
           setup=_EMBEDDED, shipped=True)
    for command in ("git status", "git log", "git branch", "git ls-files", "git rev-parse HEAD")
]  # fmt: skip
ATTACKS += [
    Attack("git options", options, {"command": f"git {options} status"}, setup=_COMMIT + f"mkdir -p x; printf '#!/bin/sh\\n{RUN}\\n' > x/git-status; chmod +x x/*")
    for options in (
        f"-c 'core.fsmonitor={RUN};:'",
        f"-c 'alias.status=!{RUN}'",
        "--exec-path=/workspace/x",
        "--git-dir=.git",
        "-C .",
        "--work-tree=. --git-dir=.git",
        f"--config-env=core.fsmonitor=X -c 'core.fsmonitor={RUN};:'",
        "-p",
        "--namespace=x",
    )
]  # fmt: skip

_HELP = (
    f"git config man.viewer x; git config man.x.cmd '{RUN}'; git config man.man.path /workspace/m; "
)
_HELP += "git config help.format man; git config alias.st 'help status'; git config alias.run '!touch /tmp/PWNED'"
ATTACKS += [
    Attack("code by configuration", f"viewer {command}", {"command": command}, setup=_COMMIT + _HELP)
    for command in (
        "git help status", "git log --help", "git status --help", "git st", "git run", "git ST",
        "git help -m git", "git branch -h", "git help -a",
    )
] + [
    Attack("code by configuration", command, {"command": command}, setup=_COMMIT)
    for command in (
        f"git grep '-O{RUN}' one", f"git bisect run {RUN}", f"git difftool -y -x '{RUN}'",
        f"git rebase --exec '{RUN}' HEAD", f"git fetch 'ext::{RUN}'", f"git clone 'ext::{RUN}' z",
        f"git ls-remote --upload-pack='{RUN};' .", f"git submodule foreach '{RUN}'",
        f"git archive --remote=. --exec='{RUN};' HEAD", f"git filter-branch --tree-filter '{RUN}'",
        f"git config core.editor '{RUN}'; git commit --amend", f"git remote-ext x '{RUN}'",
        f"git config alias.x '!{RUN}'; git x", f"git config core.fsmonitor '{RUN};:'; git status",
        f"git interpret-trailers --trailer x --in-place f; git config trailer.x.command '{RUN}'; git "
        "interpret-trailers --trailer x=1 f",
        f"git daemon --access-hook='{RUN}'", f"git credential-store --file=x get; git -c x=y {RUN}",
    )
]  # fmt: skip

# State of the session: an earlier command redefined a word that the policy allows.
_BIN = f"mkdir -p bin; for p in ls cat git grep wc; do printf '#!/bin/sh\\n{RUN}\\n' > bin/$p; done; chmod +x bin/*; "
_STATE = {
    "path": _BIN + "export PATH=$PWD/bin:$PATH",
    "path-relative": _BIN + "export PATH=bin:$PATH",
    "path-empty": _BIN + "cd bin; export PATH=:$PATH",
    "function": f"ls() {{ {RUN}; }}; cat() {{ {RUN}; }}; git() {{ {RUN}; }}; export -f ls cat git",
    "function-variable": f"export 'BASH_FUNC_ls%%=() {{ {RUN}; }}' 2>/dev/null; env 'BASH_FUNC_ls%%=() {{ {RUN}; }}' true",
    "forged-state": f"printf '/workspace\\0BASH_FUNC_ls%%%%=() {{ {RUN}; }}\\0BASH_ENV=/workspace/e\\0' > /proc/self/fd/198; echo '{RUN}' > e; kill -9 $$ # cd =",
    "bash-env": f"echo '{RUN}' > e; export BASH_ENV=$PWD/e ENV=$PWD/e",
    "alias": f"shopt -s expand_aliases; alias ls='{RUN}'; alias cat='{RUN}'; export BASHOPTS",
    "shell-options": f"set -x; export SHELLOPTS PS4='$({RUN})'",
    "prompt": f"export PROMPT_COMMAND='{RUN}' PS0='$({RUN})' PS1='$({RUN})'",
    "preload": "export LD_PRELOAD=$PWD/x.so LD_LIBRARY_PATH=$PWD LD_AUDIT=$PWD/x.so",
    "hash": _BIN + "hash -p $PWD/bin/ls ls",
    "profile": f"for f in .bashrc .profile .bash_profile .bash_login .inputrc; do echo '{RUN}' > ~/$f; done",
    "trap": f"trap '{RUN}' EXIT DEBUG; export -p >/dev/null; cd .",
    "pagers": f"export PAGER='{RUN}' LESSOPEN='|{RUN}' GIT_PAGER='{RUN}' MANPAGER='{RUN}' EDITOR='{RUN}'",
    "home-moved": f"mkdir h; printf '[core]\\nfsmonitor = {RUN};:\\n' > h/.gitconfig; export HOME=$PWD/h; git init -q",
    "background": f"(while sleep 0.05; do {RUN}; done) & disown; rm -f {MARK}",
}
for _name, _set in _STATE.items():
    for _command in ("ls", "cat f | wc -l", "git status", "grep x f; ls -la"):
        ATTACKS.append(
            Attack(
                "state of the session",
                f"{_name} {_command}",
                {"command": _command},
                setup=f"echo x > f; {_set}; rm -f {MARK}" if "kill -9" not in _set else _set,
                shipped=True,
            )
        )
    ATTACKS.append(
        Attack(
            "state of the session",
            f"{_name} exec",
            {"command": "ls", "params": ["-la"]},
            tool="exec",
            setup=_set,
            shipped=True,
        )
    )

# The word is allowed, the program by that name is another one.
_FAKE = (
    _BIN + "cp bin/ls ls; mkdir -p usr/bin; cp bin/ls usr/bin/ls; ln -s /workspace/bin/ls /tmp/ls"
)
ATTACKS += [
    Attack("state of the session", f"{tool} {program}", {"command": program} | ({"params": []} if tool == "exec" else {}),
           tool=tool, setup=_FAKE, shipped=shipped)
    for tool in ("shell", "exec")
    for shipped in (True, False)
    for program in (
        "./ls", "bin/ls", "/workspace/bin/ls", "../workspace/bin/ls", "usr/bin/ls", "/tmp/ls",
        "/usr/bin/../../workspace/bin/ls", "/bin/../workspace/ls", "//workspace/bin/ls", "~/bin/ls", "*/ls",
    )
    if shipped or tool == "shell"
]  # fmt: skip
ATTACKS += [
    Attack("code by configuration", f"spelt {command}", {"command": command}, setup=_COMMIT + _CONFIGURED["filter-clean"])
    for command in (
        "/usr/bin/git status", "/bin/git status", "\\git status", "'git' status", "g''it status", "command git status",
        "builtin command git status", "exec git status", "env git status", "timeout 5 git status", "nice git status",
        "unset -f git; git status", "ls; git status", "git status | cat", "cd . && git status", "(git status)",
        "git status; git() { :; }", "ls\ngit status", "true & git status",
    )
]  # fmt: skip
# The directory lasts between commands; a person approved to enter it, and not what is read there.
ATTACKS += [
    Attack("secrets in files", f"in {place}: {command}", {"command": command}, shipped=True,
           setup=f"export TOKEN={SECRET}; cd {place}")
    for place in ("/proc/self", "/proc/1", "/proc", "/proc/self/task", "/proc/self/fd", "/dev/fd")
    for command in ("cat environ", "cat self/environ", "cat ../environ", "cat 1/environ", "head -c 9999 cmdline", "cat *")
]  # fmt: skip

# Quoted words that bash evaluates, under a policy that allows the words.
_WORD = f"a[$({RUN})]"
_EVALUATED = (
    f"test -v '{_WORD}'",
    f"[ -v '{_WORD}' ]",
    f"printf -v '{_WORD}' x",
    f"printf -v'{_WORD}' x",
    f"read '{_WORD}'",
    f"read -r '{_WORD}'",
    f"echo x | read '{_WORD}'",
    f"read -a '{_WORD}'",
    f"let '{_WORD}'",
    f"let 'x={_WORD}'",
    f"declare '{_WORD}=1'",
    f"declare -a 'b=($({RUN}))'",
    f"declare -i 'x={_WORD}'",
    f"typeset '{_WORD}=1'",
    f"local '{_WORD}=1'",
    f"export '{_WORD}=1'",
    f"readonly '{_WORD}=1'",
    f"unset '{_WORD}'",
    f"compgen -W '$({RUN})'",
    f"compgen -C '{RUN}'",
    f"compgen -F '{RUN}' x",
    f"mapfile -C '{RUN}' -c 1 x",
    f"readarray '{_WORD}'",
    f"wait -p '{_WORD}'",
    f"getopts a '{_WORD}'",
    "hash -p /workspace/evil ls; ls",
    f"eval '{RUN}'",
    f"trap '{RUN}' EXIT",
    f"alias 'ls={RUN}'",
    f"complete -C '{RUN}' ls",
    "enable -f /workspace/x.so ls",
    "source evil",
    ". evil",
    f"set -- '$({RUN})'",
    f"[[ -v '{_WORD}' ]]",
    f"[[ '{_WORD}' -eq 0 ]]",
    f"(( {_WORD} ))",
    f"echo $(({_WORD}))",
    "echo ${!x}",
    f"echo \"${{a[{_WORD}]}}\"",
    f"jobs -x {RUN}",
    f"fc -e '{RUN}'",
    f"coproc {RUN}",
    f"command eval '{RUN}'",
    f"builtin printf -v '{_WORD}' x",
    f"exec {RUN}",
)  # fmt: skip
_SPARED = tuple(
    f"{name} {option}'{word}'"
    for name in (":", "cd", "dirs", "echo", "exit", "kill", "popd", "pushd", "pwd", "times",
                 "true", "false", "type", "ulimit", "umask")
    for option in ("", "-v ", "-n ", "-p ", "-a ", "-e ", "-l ", "-L ", "-S ", "+", "-- ")
    for word in (_WORD, f"$({RUN})", f"`{RUN}`")
)  # fmt: skip
ATTACKS += [
    Attack(
        "quoted words",
        text,
        {"command": text},
        setup=f"printf '#!/bin/sh\\n{RUN}\\n' > evil; chmod +x evil",
    )
    for text in (*_EVALUATED, *_SPARED)
]
ATTACKS += [
    Attack("quoted words", f"exec {program} {' '.join(params)}", {"command": program, "params": params}, tool="exec")
    for program, params in (
        ("test", ["-v", _WORD]),
        ("[", ["-v", _WORD, "]"]),
        ("printf", ["-v", _WORD, "x"]),
        ("let", [_WORD]),
        ("read", [_WORD]),
        ("declare", [f"{_WORD}=1"]),
        ("eval", [RUN]),
        ("compgen", ["-C", RUN]),
        ("export", [f"{_WORD}=1"]),
        ("echo", [f"$({RUN})", f"`{RUN}`"]),
        ("hash", ["-p", "/workspace/evil", "ls"]),
        (f"ls;{RUN}", []),
        ("A=b", [RUN]),
    )
]  # fmt: skip

# Secrets in files: each reads the canary in one of them, by another spelling or another way.
_FILES = (
    f"echo {SECRET} > .env; mkdir -p .ssh sub; echo {SECRET} > .ssh/id_rsa; echo {SECRET} > sub/.env; "
    f"echo {SECRET} > key.pem; export TOKEN={SECRET}; "
)
_READERS = (
    "cat .env", "cat ./.env", "cat sub/../.env", "cat sub//.env", "cat /workspace/.env",
    "cat //workspace/.env", "cat '.e''nv'", "cat .e*", "cat .[e]nv", "cat ~/.env", "cat $HOME/.env",
    "cat .en?", "cat {.env,x}", "head -c 99 .env", "tail -n 5 .env", "cut -c1-99 .env", "nl .env",
    "tr a a < .env", "grep '' .env", "grep -f .env .env", "grep -r '' .", "grep -R '' .",
    "grep -rn canary", "grep -nri CANARY /workspace", "grep --recursive '' .", "grep --rec '' .",
    "grep --dereference-recursive '' .", "grep -d recurse '' .", "grep -drecurse '' .",
    "grep --directories=recurse '' .", "grep -d rec '' .", "grep -hIr canary sub",
    "grep '' -r .", "jq -R . .env", "jq -n env", "jq -n '$ENV'", "jq -n '$ENV.TOKEN'", "jq -Rs . .env",
    "git show", "git show HEAD", "git diff", "git diff HEAD", "git diff --cached", "git show HEAD:.env",
    "git log -p", "git stash show -p", "git diff --no-index /dev/null .env", "cat .ssh/id_rsa",
    "cat key.pem", "cat ./.ssh//id_rsa", "cat /proc/self/environ", "cat //proc/self/environ",
    "cat /./proc/self/environ", "cat /proc/../proc/self/environ", "cat ../proc/self/environ",
    "cat sub/../../proc/self/environ", "cat /proc/1/environ", "cat /dev/fd/../environ",
    "cat /proc/thread-self/environ", "grep -a '' /dev/fd/../environ", "head /dev/stdin/../../environ",
    "grep --file=//proc/self/environ .", "cat /workspace/../proc/self/environ", "wc -L .env; cat .env",
    "sort .env", "cmp -l .env /dev/null", "cat -- .env", "echo .e*", "cat < .env",
    "cat /workspace/./.env",
)  # fmt: skip
ATTACKS += [
    Attack("secrets in files", text, {"command": text}, shipped=True,
           setup=_FILES + "git init -q; git add -f .env sub; git -c user.name=a -c user.email=b commit -qm x; "
           f"echo {SECRET}2 >> .env; git add .env; echo {SECRET}3 >> .env")
    for text in _READERS
]  # fmt: skip
ATTACKS += [
    Attack("secrets in files", f"exec {' '.join(words)}", {"command": words[0], "params": words[1:]},
           tool="exec", setup=_FILES, shipped=True)
    for words in (
        ["cat", ".env"], ["cat", "./.env"], ["cat", "sub/..//.env"], ["cat", "//proc/self/environ"],
        ["grep", "-r", "", "."], ["cat", "../proc/self/environ"], ["cat", "/dev/fd/../environ"],
        ["jq", "-n", "env"], ["cat", "/workspace/.ssh/../.env"], ["grep", "", "-rh", "."],
    )
]  # fmt: skip
