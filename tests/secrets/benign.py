"""Lines that hold no secret: the standard library's files, and what programs print."""

import base64
import hashlib
import random
import sysconfig
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path

STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))


def library_lines(each: int) -> Iterator[str]:
    """Of every 7th module of the standard library, some lines: code, docstrings, comments."""
    for path in sorted(STANDARD_LIBRARY.glob("*/*.py"))[::7]:
        yield from path.read_text("utf-8", "replace").splitlines()[:each]


def made_lines(chance: random.Random, count: int) -> Iterator[str]:
    """Lines as logs, git, package managers, registries and encoders print them."""
    for number in range(count):
        raw = chance.randbytes(64)
        sha1, sha256 = hashlib.sha1(raw).hexdigest(), hashlib.sha256(raw).hexdigest()
        sri = base64.b64encode(hashlib.sha512(raw).digest()).decode()
        made = (
            f"2026-11-18T20:{number % 60:02}:10.123Z INFO run_started run_id=run_01jcq3w7m2a8v5k9x4t6",
            f"commit {sha1}",
            f"Author: A. Writer <writer{number}@example.org>",
            f"index {sha1[:10]}..{sha256[:10]} 100644",
            f"   {sha1[:7]}..{sha256[:7]}  main -> main",
            f'      "integrity": "sha512-{sri}",',
            f"    --hash=sha256:{sha256} \\",
            f"toolgate/x{number}.py,sha256={urlsafe(sha256)},1234",
            f"example.org/mod v1.2.{number} h1:{base64.b64encode(raw[:32]).decode()}",
            f"{sha256}  dist/package-1.{number}.tar.gz",
            f"Digest: sha256:{sha256}",
            f"trace {uuid.UUID(int=chance.getrandbits(128), version=4)} took {number} ms",
            f"GET /static/js/main.{sha1[:8]}.chunk.js HTTP/1.1 200 {number}",
            f"https://example.org/a/b/{number}?page={number}&sort=name&lang=en#section-{number}",
            f"pod/web-{sha1[:10]}-x{number % 10}k{number % 7}q 1/1 Running 0 {number}m",
            f"drwxr-xr-x 2 root root 4096 Nov 18 20:{number % 60:02} /usr/lib/python3/dist-packages",
            f"/home/someone/projects/web/node_modules/@types/node/ts{number}.d.ts",
            base64.b64encode(zlib.compress(raw * 3)).decode()[:76],
            f"data:image/png;base64,iVBORw0KGgo{base64.b64encode(raw + raw).decode()}",
            f"self.assertEqual(getHTTPResponseCode{number}(request), HTTPStatus.OK)",
            f"ERROR: could not open file 'report-2026-11-{number % 28 + 1:02}.csv': no such file",
            f"Downloading package_{number}-3.1.4-cp311-manylinux_2_17_x86_64.whl (1.{number} MB)",
            f"etag: W/\"{sha1[:27]}\" last-modified: Wed, 18 Nov 2026 20:30:10 GMT",
            f"arn:aws:iam::123456789012:role/service-role/deploy-{number}",
        )  # fmt: skip
        yield made[number % len(made)]


def urlsafe(hexadecimal: str) -> str:
    return base64.urlsafe_b64encode(bytes.fromhex(hexadecimal)).decode().rstrip("=")
