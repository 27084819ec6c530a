"""Ways in which the inside has been reached from outside; `{port}` is where a listener waits.

Names under `.example.com` are answered by the test's own resolver.
"""

HOSTS = [
    # plain
    "127.0.0.1", "127.0.0.2", "127.1.1.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.0.0.1",
    "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.0.1", "192.168.1.1",
    "169.254.169.254", "169.254.0.1", "169.254.170.2", "100.64.0.1", "100.100.100.200",
    "192.0.0.192", "192.0.2.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1",
    "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "192.88.99.1",
    "168.63.129.16",
    # numeric spellings of loopback and metadata
    "127.1", "127.0.1", "2130706433", "017700000001", "0x7f000001", "0x7f.1", "0x7f.0.0.1",
    "0177.0.0.1", "0177.0.0.01", "0177.0x0.0.1", "127.0.0.01", "127.0.0.0x1", "00000177.0.0.1",
    "0x7F000001", "0X7f.0X0.0X0.0X1", "0x0000007f.1", "127.000.000.001", "2852039166",
    "0xa9fea9fe", "0xa9.0xfe.0xa9.0xfe", "0251.0376.0251.0376", "169.254.43518", "169.16689662",
    "0", "0x0", "00", "0.0", "0.0.0", "1", "127.65535", "3232235521", "167772161", "0xc0a80001",
    "025177524776", "4294967295", "4294967296", "99999999999999999999", "0x100000000",
    "127.0.0.1.1", "256.256.256.256", "127.0.0.256", "08.0.0.1", "0x7g.0.0.1",
    # dots, case and look-alikes
    "127.0.0.1.", "localhost", "LOCALHOST", "localhost.", "LocalHost", "foo.localhost",
    "localhost.localdomain", "printer.local", "metadata.google.internal", "instance-data.internal",
    "router.home.arpa", "127。0。0。1", "127.0.0.1", "①②⑦.⓪.⓪.①", "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ",
    "locaLhoﬆ", "127.0.0.1", "𝟏𝟐𝟕.𝟎.𝟎.𝟏", "1₂7.0.0.1", "localhost", "127.0.0.1",
    "٠x7f.1", "127..0.0.1", ".127.0.0.1", "127.0.0.1..", "", ".", "-", "l\u200bocalhost",
    "127.0.0.1\u00ad", "127.0.0.1\u2024",
    # IPv6
    "[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[0000::0001]", "[::127.0.0.1]", "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]", "[0:0:0:0:0:ffff:127.0.0.1]", "[::ffff:0:127.0.0.1]", "[::FFFF:169.254.169.254]",
    "[64:ff9b::127.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b::a9fe:a9fe]", "[64:ff9b:1::7f00:1]",
    "[64:ff9b:1:fffe::10.0.0.1]", "[2002:7f00:1::]", "[2002:7f00:0001::1]", "[2002:a9fe:a9fe::]",
    "[2001:0:7f00:1::]", "[2001:0:4136:e378:8000:63bf:80ff:fffe]", "[2001:db8::1]", "[3fff::1]",
    "[fc00::1]", "[fd00:ec2::254]", "[fe80::1]", "[fe80::1%25lo]", "[fe80::1%lo]", "[fec0::1]",
    "[ff02::1]", "[::1%25lo]", "[::1%lo]", "[100::1]", "[5f00::1]", "[4000::1]",
    "[2600:1f18::5efe:127.0.0.1]", "[2600:1f18::200:5efe:10.0.0.1]", "[fe80::5efe:127.0.0.1]",
    "[::1", "::1]", "[[::1]]", "[127.0.0.1]", "[::1].example.com", "[v1.fe80::a+en1]",
    # encodings
    "127.0.0.1%00", "%31%32%37.0.0.1", "127%2e0%2e0%2e1", "loc%61lhost", "%6cocalhost",
    "127.0.0.1%2f", "127.0.0.1%09", "127.0.0.1%0d%0a",
    # names that lead inside
    "loopback.example.com", "private.example.com", "metadata.example.com", "mapped.example.com",
    "six.example.com", "nat64.example.com", "sixtofour.example.com", "zero.example.com",
    "mixed.example.com", "scoped.example.com", "rebind.example.com", "cgnat.example.com",
    "LOOPBACK.EXAMPLE.COM", "loopback.example.com.", "lοopback.example.com",
]  # fmt: skip

URLS = [
    "http://user@127.0.0.1:{port}/", "http://user:pass@127.0.0.1:{port}/",
    "http://public.example.com@127.0.0.1:{port}/", "http://public.example.com:80@127.0.0.1:{port}/",
    "http://public.example.com%40127.0.0.1:{port}/", "http://127.0.0.1:{port}#@public.example.com/",
    "http://127.0.0.1:{port}\\@public.example.com/", "http://public.example.com\\@127.0.0.1:{port}/",
    "http:\\\\127.0.0.1:{port}/", "http:/127.0.0.1:{port}/", "http:127.0.0.1:{port}/",
    "http:///127.0.0.1:{port}/", "http://///127.0.0.1:{port}/", "//127.0.0.1:{port}/",
    "http://\t127.0.0.1:{port}/", "http://127.0.0.1\t:{port}/", "ht\ntp://127.0.0.1:{port}/",
    "http://127.0.0\n.1:{port}/", " http://127.0.0.1:{port}/", "http://127.0.0.1:{port}/\r\nX: y",
    "http://127.0.0.1 :{port}/", "http://127.0.0.1:{port}:80/", "http://127.0.0.1:0{port}/",
    "http://127.0.0.1:+{port}/", "http://127.0.0.1:{port} /", "http://127.0.0.1: {port}/",
    "http://[::1]{port}/", "http://[::1]:{port}@public.example.com:{port}/",
    "http://public.example.com&@127.0.0.1:{port}/", "http://127.0.0.1:{port}?@public.example.com/",
    "http://{{127.0.0.1}}:{port}/", "http://127.0.0.1;public.example.com:{port}/",
    "http://127.0.0.1,public.example.com:{port}/", "http://127.0.0.1|x:{port}/",
    "gopher://127.0.0.1:{port}/_GET", "file:///etc/passwd", "ftp://127.0.0.1:{port}/",
    "dict://127.0.0.1:{port}/x", "ldap://127.0.0.1:{port}/", "tftp://127.0.0.1:{port}/x",
    "jar:http://127.0.0.1:{port}!/", "data:text/plain,x", "javascript:fetch('http://127.0.0.1')",
    "http+unix://%2fvar%2frun%2fdocker.sock/info", "unix:///var/run/docker.sock",
    "netdoc:///etc/hosts", "HTTP://127.0.0.1:{port}/", "hTTpS://127.0.0.1:{port}/",
    "https://127.0.0.1:{port}/", "https://loopback.example.com:{port}/", "http://127.0.0.1:{port}/%00",
    "http://127.0.0.1:{port}/..;/", "http://0:{port}/", "http://①②⑦.⓪.⓪.①:{port}/",
    "http://127.0.0.1:{port}", "http://127.0.0.1:{port}", "http∶//127.0.0.1:{port}/",
    "http://127.0.0.1:{port}/", "url:http://127.0.0.1:{port}/", "http://\u202e127.0.0.1:{port}/",
]  # fmt: skip

ANSWERS = {
    "loopback.example.com": ["127.0.0.1"],
    "private.example.com": ["10.0.0.1"],
    "metadata.example.com": ["169.254.169.254"],
    "mapped.example.com": ["::ffff:127.0.0.1"],
    "six.example.com": ["::1"],
    "nat64.example.com": ["64:ff9b::7f00:1"],
    "sixtofour.example.com": ["2002:7f00:1::"],
    "zero.example.com": ["0.0.0.0"],
    "mixed.example.com": ["8.8.8.8", "127.0.0.1"],
    "scoped.example.com": ["fe80::1%lo"],
    "cgnat.example.com": ["100.64.0.1"],
}


def payloads(port: int) -> list[str]:
    return [f"http://{host}:{port}/" for host in HOSTS] + [url.format(port=port) for url in URLS]
