"""Randomness by the page."""

import os
from concurrent.futures import ThreadPoolExecutor

from toolgate.core.randomness import PAGE, Randomness


def test_no_byte_is_given_twice_whichever_thread_asks() -> None:
    random = Randomness()
    with ThreadPoolExecutor(4) as threads:
        taken = list(threads.map(lambda _: random.take(12), range(4 * PAGE // 12)))
    assert {len(one) for one in taken} == {12}
    assert len(set(taken)) == len(taken)


def test_more_than_a_page_can_be_had() -> None:
    assert len(Randomness().take(PAGE + 1)) == PAGE + 1


def test_a_forked_process_has_randomness_of_its_own() -> None:
    random = Randomness()
    random.take(1)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, random.take(16))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 16) != random.take(16)
    os.close(reading)
    os.close(writing)
