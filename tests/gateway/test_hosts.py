import pytest

from gateway.hosts import is_of_this_machine


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("", True),
        ("localhost", True),
        ("LocalHost:8080", True),
        ("localhost.:80", True),
        ("gateway.localhost:8080", True),
        ("127.0.0.1:8080", True),
        ("192.168.1.7", True),
        ("[::1]:8080", True),
        ("[::1]", True),
        ("evil.example", False),
        ("evil.example:8080", False),
        ("localhost.evil.example", False),
        ("notlocalhost", False),
        ("127.0.0.1.evil.example", False),
        ("127.0.0.1@evil.example", False),
        ("evil.example@127.0.0.1", False),
        ("[::1].evil.example", False),
        ("127.1", False),
        ("x/livez?", False),
        ("localhost, evil.example", False),
    ],
)
def test_names_that_a_stranger_could_own_are_told_from_addresses(host: str, expected: bool) -> None:
    assert is_of_this_machine(host) is expected
