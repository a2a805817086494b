"""An address that comes from data leads nowhere but to the public internet, whatever its name resolves to, and when."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms import ConfigurationError, ProviderError, RetryConfig
from acms.providers import Endpoint, HTTPEmbedder
from acms.providers.addresses import AddressGuard, is_public, resolve_host
from tests.providers.server import Behave, ModelServer

# Made for these tests, valid for a hundred years, trusted by nobody else:
# openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 36500 -subj /CN=models.example.com
#   -addext subjectAltName=DNS:models.example.com -addext keyUsage=critical,digitalSignature,keyCertSign
CERTIFICATE = Path(__file__).with_name("models.example.com.cert.pem")
KEY = Path(__file__).with_name("models.example.com.key.pem")
LOOPBACK = ("127.0.0.0/8",)


class Names:
    """A resolver that gives each of some answers once, then the last one again."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, KEY)
    async with ModelServer(tls=context) as server:
        yield server


def make_endpoint(
    server: ModelServer, names: Any, *, host: str = "models.example.com", **given: Any
) -> Endpoint:
    given = {
        "trusted": False,
        "resolve": names,
        "retry": RetryConfig(max_attempts=1),
        "verify": ssl.create_default_context(cafile=str(CERTIFICATE)),
        **given,
    }
    return Endpoint(f"https://{host}:{server.port}/v1", **given)


async def post_request(found: Endpoint) -> str:
    return await found.post("chat/completions", {"model": "m"}, lambda answer: str(answer["object"]))


# ── which addresses are public ──────────────────────────────────────────────────────────────────────────────────────

REFUSED = [
    "127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1",
    "169.254.169.254", "169.254.170.2", "100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "192.0.0.8",
    "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.51.100.7", "203.0.113.9", "224.0.0.1", "239.255.255.250",
    "240.0.0.1", "255.255.255.255",
    "::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::ffff:169.254.169.254", "64:ff9b::7f00:1",
    "64:ff9b::808:808", "64:ff9b:1::a00:1", "100::1", "2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:10::1", "2001:20::1", "2001:db8::1", "2002:7f00:1::", "2002:a9fe:a9fe::", "3fff::1", "5f00::1",
    "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "2600::1%eth0", "fec0::1", "ff02::1",
    "", "localhost", "8.8.8", "0x7f.0.0.1", "2130706433", "127.1", "8.8.8.8/32", "[::1]",
]  # fmt: skip
PERMITTED = ["8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450:4001:81b::200e"]


@pytest.mark.parametrize("address", REFUSED)
def test_an_address_that_is_not_public_is_known(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", PERMITTED)
def test_a_public_address_is_known(address: str) -> None:
    assert is_public(address)


@given(st.ip_addresses())
def test_nothing_is_public_that_python_knows_to_be_special(address: Any) -> None:
    if is_public(str(address)):
        assert address.is_global
        kinds = ("is_multicast", "is_loopback", "is_link_local", "is_unspecified")
        assert not [kind for kind in kinds if getattr(address, kind)]


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_inside_of_an_ipv6_one_is_refused(address: Any) -> None:
    for wrapped in (f"::ffff:{address}", f"::{address}", f"64:ff9b::{address}"):
        assert not is_public(str(ip_address(wrapped)))
    assert not is_public(str(ip_address((0x2002 << 112) + (int(address) << 80))))


# ── refusing ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "127.0.0.1",
        "[::1]",
        "2130706433",
        "0x7f.1",
        "127.1",
        "[::ffff:7f00:1]",
        "169.254.169.254",
    ],
)
async def test_t36_loopback_is_refused_in_every_spelling(server: ModelServer, host: str) -> None:
    async with make_endpoint(server, resolve_host, host=host) as found:
        with pytest.raises(ProviderError) as raised:
            await post_request(found)
    assert not raised.value.retryable or "cannot be resolved" in str(raised.value)
    assert server.connected == 0


@pytest.mark.parametrize(
    "answer", [["10.0.0.7"], ["8.8.8.8", "10.0.0.7"], ["fd00::7"], ["::ffff:10.0.0.7"], [], ["nonsense"]]
)
async def test_t36_a_name_that_leads_inside_is_refused_and_not_told_where(
    server: ModelServer, answer: list[str]
) -> None:
    async with make_endpoint(server, Names(answer)) as found:
        with pytest.raises(
            ProviderError, match=r"^models\.example\.com is not on the public internet"
        ) as raised:
            await post_request(found)
    assert not raised.value.retryable
    assert "0.7" not in f"{raised.value!r}{raised.value.options}"
    assert server.connected == 0


async def test_a_name_that_cannot_be_resolved_may_be_tried_again(server: ModelServer) -> None:
    async def names(host: str, port: int) -> list[str]:
        raise OSError("no such name")

    async with make_endpoint(server, names) as found:
        with pytest.raises(ProviderError, match="cannot be resolved") as raised:
            await post_request(found)
    assert raised.value.retryable


async def test_a_resolver_that_is_silent_is_given_up(server: ModelServer) -> None:

    async def names(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    async with make_endpoint(server, names, timeout=0.05) as found:
        with pytest.raises(ProviderError, match=r"no answer within 0\.05 s"):
            await post_request(found)


@pytest.mark.parametrize(
    "address",
    [
        "http://models.example.com/v1",
        "HTTP://models.example.com",
        "file:///etc/passwd",
        "ftp://a.example.com",
    ],
)
def test_t36_only_https_will_do(address: str) -> None:
    with pytest.raises(ConfigurationError, match=r"base_url must be (https|an address)"):
        Endpoint(address, trusted=False)


@pytest.mark.parametrize("allow", ["10.0.0.0/8", ["10.0.0.1/8"], ["inside"], [None]])
def test_what_is_no_list_of_networks_is_refused(allow: Any) -> None:
    with pytest.raises(ConfigurationError, match="allow"):
        AddressGuard(allow)


# ── connecting to what was checked ──────────────────────────────────────────────────────────────────────────────────


async def test_the_connection_goes_to_the_address_that_was_checked_under_the_name_that_was_given(
    server: ModelServer,
) -> None:
    names = Names(["127.0.0.1"])
    async with make_endpoint(server, names, allow=LOOPBACK, api_key="sk-canary") as found:
        assert await post_request(found) == "chat.completion"
        assert await post_request(found) == "chat.completion"
    assert names.asked == [("models.example.com", server.port)] * 2
    assert [call.headers["host"] for call in server.calls] == [f"models.example.com:{server.port}"] * 2
    assert server.connected == 1


async def test_t36_an_answer_that_changes_after_the_check_is_checked_again(server: ModelServer) -> None:
    names = Names(["127.0.0.1"], ["169.254.169.254"])
    async with make_endpoint(server, names, allow=LOOPBACK) as found:
        await post_request(found)
        with pytest.raises(ProviderError, match="not on the public internet"):
            await post_request(found)
    assert (len(names.asked), len(server.calls)) == (2, 1)


async def test_every_attempt_is_checked(server: ModelServer) -> None:
    server.script = [Behave(status=503)]
    names = Names(["127.0.0.1"], ["10.0.0.7"])
    retry = RetryConfig(max_attempts=5, base_delay=0)
    async with make_endpoint(server, names, allow=LOOPBACK, retry=retry) as found:
        with pytest.raises(ProviderError, match="not on the public internet"):
            await post_request(found)
    assert (len(names.asked), len(server.calls)) == (2, 1)


async def test_the_certificate_must_be_that_of_the_name(server: ModelServer) -> None:
    async with make_endpoint(server, Names(["127.0.0.1"]), allow=LOOPBACK, host="other.example.com") as found:
        with pytest.raises(ProviderError, match=r"cannot be reached: .*certificate"):
            await post_request(found)
    assert server.calls == []


async def test_the_next_address_is_tried_when_one_does_not_answer(server: ModelServer) -> None:
    names = Names(["127.0.0.2", "127.0.0.3", "127.0.0.1"])
    async with make_endpoint(server, names, allow=LOOPBACK) as found:
        assert await post_request(found) == "chat.completion"
    assert (len(names.asked), len(server.calls)) == (1, 1)


async def test_a_server_that_answers_with_an_error_is_not_asked_again_elsewhere(server: ModelServer) -> None:
    server.otherwise = Behave(status=500)
    async with make_endpoint(server, Names(["127.0.0.1", "127.0.0.1"]), allow=LOOPBACK) as found:
        with pytest.raises(ProviderError, match="answered 500"):
            await post_request(found)
    assert len(server.calls) == 1


async def test_t36_a_redirect_inside_is_not_followed(server: ModelServer) -> None:
    server.script = [Behave(status=302, headers={"location": "https://169.254.169.254/latest/meta-data"})]
    async with make_endpoint(server, Names(["127.0.0.1"]), allow=LOOPBACK) as found:
        with pytest.raises(ProviderError, match="redirects are not followed"):
            await post_request(found)
    assert len(server.calls) == 1


async def test_a_proxy_of_the_environment_is_not_used(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with make_endpoint(server, Names(["127.0.0.1"]), allow=LOOPBACK) as found:
        assert await post_request(found) == "chat.completion"


async def test_a_provider_takes_such_an_endpoint(server: ModelServer) -> None:
    found = make_endpoint(server, Names(["127.0.0.1"], ["10.0.0.7"]), allow=LOOPBACK)
    async with HTTPEmbedder(found, "test", dimension=server.dimension) as embedder:
        assert len(await embedder.embed(["a"])) == 1
        with pytest.raises(ProviderError, match="not on the public internet"):
            await embedder.embed(["a"])
