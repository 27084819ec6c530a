"""A seal that closes nothing, so that a test can read what was written."""


class PlainSeal:
    def close(self, content: bytes) -> bytes:
        return content

    def open(self, closed: bytes) -> bytes:
        return closed
