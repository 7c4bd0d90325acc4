"""Limits of sign-in: nobody locks out another person, and nobody guesses fast."""

from nosology.workbench.sign_in import MAX_DELAY, FailureLimit, SignInDelays, device_cookie, device_of, name_digest


def test_delays_grow_up_to_a_limit():
    delays, now, waits = SignInDelays(), 0.0, []
    for _ in range(40):
        delays.fail("ann 10.0.0.1", now)
        waits.append(delays.wait("ann 10.0.0.1", now))
        now += waits[-1]
    assert waits[:6] == [0, 0, 0, 2, 4, 8] and waits[-1] == MAX_DELAY
    assert delays.wait("ann 10.0.0.1", now) == 0  # after the delay an attempt is allowed again
    assert delays.wait("ann 10.0.0.2", now) == delays.wait("ben 10.0.0.1", now) == 0
    delays.succeed("ann 10.0.0.1")
    delays.fail("ann 10.0.0.1", now)
    assert delays.wait("ann 10.0.0.1", now) == 0


def test_random_names_do_not_fill_the_memory():
    delays, limit = SignInDelays(), FailureLimit(10, 60.0)
    for number in range(25_000):
        delays.fail(f"name {number}", 0.0)
        limit.fail(f"address {number}", number * 60.0)
    assert len(delays._failures) <= 10_000 and len(limit._events) <= 10_000


def test_the_limit_counts_failures_within_its_time():
    limit = FailureLimit(2, 10.0)
    for now in (0.0, 1.0):
        assert limit.allows("a", now)
        limit.fail("a", now)
    assert not limit.allows("a", 2.0) and limit.allows("b", 2.0) and limit.allows("a", 10.5)


def test_the_cookie_of_a_browser_is_valid_for_one_name_and_one_server():
    cookie = device_cookie(b"key", "Ann")
    assert device_of(b"key", " ann", cookie) and device_of(b"key", "ben", cookie) is None
    assert device_of(b"other", "ann", cookie) is None and device_of(b"key", "ann", "x.y") is None
    assert name_digest(b"key", "hunter2") == name_digest(b"key", "Hunter2") != name_digest(b"other", "hunter2")
