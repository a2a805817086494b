"""Which store a URL names, and which of them holds a tenant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from acms import ACMS, ConfigurationError, NotFoundError, ValidationError, open_storage, storage
from acms.branches import copying
from acms.errors import HandleError, StorageReadOnlyError
from acms.kv import open_kv
from acms.model import ContextQuery
from acms.storage import MemoryStorage, Shards, SQLiteStorage, urls
from acms.testing.logs import append_drafts, create_log, draft_message

SECRET = "s3cr3t/p@ss:w?rd"

TWO = """
default = "eu-1"

[shards]
eu-1 = "sqlite:///eu.db"
us-1 = "sqlite:///folder/us%201.db?durability=relaxed"

[tenants]
acme = "us-1"
initech = "us-1"
hooli = "eu-1"
"""


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        file = tmp_path / "shards.toml"
        file.write_text(text, encoding="utf-8")
        (tmp_path / "folder").mkdir(exist_ok=True)
        return file

    return write


async def context_keys(store: storage.Handle) -> set[str | None]:
    return {context.key for context in (await store.contexts(ContextQuery())).items}


# ── tenants and their shards ────────────────────────────────────────────────────────────────────────────────────────


async def test_every_tenant_has_its_shard_and_sees_only_itself(
    written: Callable[[str], Path], tmp_path: Path
) -> None:
    async with Shards(written(TWO)) as shards:
        assert shards.tenants() == {"acme": "us-1", "hooli": "eu-1", "initech": "us-1"}
        assert [shards.shard(name) for name in ("acme", "hooli", "somebody")] == ["us-1", "eu-1", "eu-1"]
        for tenant in ("acme", "initech", "somebody"):
            store = shards.of(tenant)
            assert store is shards.of(tenant)
            assert store.tenant == tenant
            await append_drafts(store, await create_log(store, tenant), draft_message(f"this is {tenant}"))
        for tenant in ("acme", "initech", "somebody"):
            assert await context_keys(shards.of(tenant)) == {tenant}
        assert await context_keys(shards.of("hooli")) == set()
        assert shards.of("acme").durability == "relaxed"
    assert (tmp_path / "eu.db").exists(), "a relative file lies beside the one that names it"
    assert (tmp_path / "folder" / "us 1.db").exists()
    with pytest.raises(HandleError, match="closed"):
        shards.of("acme")
    await shards.aclose()


async def test_a_url_opens_the_store_of_one_tenant(written: Callable[[str], Path]) -> None:
    file = written(TWO)
    async with open_storage(f"{file}?tenant=acme") as store:
        assert isinstance(store, SQLiteStorage)
        assert store.tenant == "acme"
        assert store.path.name == "us 1.db"
        await create_log(store, "a")
    async with open_storage(str(file)) as store:
        assert (store.tenant, await context_keys(store)) == ("default", set())
    async with Shards(file) as shards:
        assert await context_keys(shards.of("acme")) == {"a"}
    with pytest.raises(ConfigurationError, match="is not the URL of a store"):
        open_storage(f"{file}?tenant=acme&mode=ro")


async def test_sessions_work_on_a_shard(written: Callable[[str], Path]) -> None:
    async with Shards(written(TWO)) as shards:
        store = shards.of("acme")
        async with ACMS("user_123", store) as session:
            await session.ingest("user", "hello")
        async with ACMS("user_123", store) as session:
            assert (await session.window(100)).text()


class Pool(MemoryStorage):
    """A store whose tenants share what is opened, as those of a server do."""

    def __init__(self, *, tenant: str, first: Pool | None = None) -> None:
        super().__init__(tenant=tenant)
        self.first = first
        self.closed = False

    def for_tenant(self, tenant: str) -> Pool:
        return Pool(tenant=tenant, first=self)

    async def aclose(self) -> None:
        assert self.first is None or not self.first.closed, "the shared connections went first"
        self.closed = True


async def test_tenants_of_a_shard_share_its_connections(
    written: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def pool(url: str) -> Pool:
        opened.append(url)
        return Pool(tenant=url.rpartition("=")[2])

    monkeypatch.setattr(storage, "open_storage", pool)
    shards = Shards(
        written('[shards]\none = "postgresql://h/a?x=1"\n[tenants]\na = "one"\nb = "one"\nc = "one"')
    )
    stores = [shards.of(name) for name in "abc"]
    assert opened == ["postgresql://h/a?x=1&tenant=a"]
    assert [store.tenant for store in stores] == ["a", "b", "c"]
    await shards.aclose()
    assert all(isinstance(store, Pool) and store.closed for store in stores)


async def test_tenants_of_a_server_share_its_connections(
    written: Callable[[str], Path], postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACMS_SERVER", postgres_url)
    async with Shards(written('default = "one"\n[shards]\none = "${ACMS_SERVER}"')) as shards:
        for tenant in ("acme", "initech", "hooli"):
            store = shards.of(tenant)
            await append_drafts(store, await create_log(store, tenant), draft_message(f"this is {tenant}"))
        for tenant in ("acme", "initech", "hooli"):
            assert await context_keys(shards.of(tenant)) == {tenant}
        pools = {id(store._db.pool) for store in map(shards.of, ("acme", "initech", "hooli"))}  # type: ignore[attr-defined]
        assert len(pools) == 1
    async with open_storage(f"{shards.path}?tenant=acme") as store:
        assert await context_keys(store) == {"acme"}


async def test_a_tenant_moves_by_a_copy_and_one_line(written: Callable[[str], Path]) -> None:
    file = written(TWO)
    async with Shards(file) as before:
        store = before.of("acme")
        context = await create_log(store, "talk")
        await append_drafts(store, context, draft_message("one"), draft_message("two"))
        head = await store.head(context.id)
    text = file.read_text(encoding="utf-8")
    moved = written(text.replace('acme = "us-1"', 'acme = "eu-1"'))
    async with (
        Shards(moved) as after,
        SQLiteStorage(file.parent / "folder" / "us 1.db", tenant="acme") as old,
    ):
        assert (await copying.copy(old, after.of("acme"), verify=True)).problems == ()
        assert (await after.of("acme").head(context.id)).chain == head.chain
        assert await context_keys(after.of("hooli")) == set()


# ── files that say something wrong ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "shards: names no store"),
        ("[shards]", "shards: names no store"),
        ("shards = 1", "shards: must be a table"),
        ("[shards]\na = 1", "shards.a: must be text"),
        ('[shards]\na = "nowhere"', "shards.a: 'nowhere' is not the URL of a store"),
        ('[shards]\na = "other.toml"', "shards.a: must name a store, not another file"),
        ('[shards]\na = "sqlite:///a.db?tenant=x"', "shards.a: names a tenant"),
        ('[shards]\na = "memory://"\n[tenants]\nx = "b"', "tenants.x: there is no shard 'b'"),
        ('[shards]\na = "memory://"\n[tenants]\nx = true', "tenants.x: must be text"),
        ('default = "b"\n[shards]\na = "memory://"', "default: there is no shard 'b'"),
        ('default = 1\n[shards]\na = "memory://"', "default: must be the name"),
        ('[shards]\na = "memory://"\n[tenant]\nx = "a"', "tenant: is not one of"),
        ("[shards", "is not TOML"),
        ("[shards]\na = '\\xff", "is not TOML"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(written: Callable[[str], Path], text: str, what: str) -> None:
    file = written(text)
    with pytest.raises(ConfigurationError, match=what) as caught:
        Shards(file)
    assert str(file) in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no file .*shards\.toml"):
        open_storage(str(tmp_path / "shards.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Shards(tmp_path / "binary.toml")
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Shards(tmp_path / "folder.toml")


def test_a_tenant_nobody_holds_is_an_error(written: Callable[[str], Path]) -> None:
    shards = Shards(written('[shards]\na = "memory://"\n[tenants]\nx = "a"'))
    with pytest.raises(NotFoundError, match="no shard has the tenant 'y'") as caught:
        shards.of("y")
    assert "[tenants]" in caught.value.options[0]
    with pytest.raises(NotFoundError):
        open_storage(f"{shards.path}?tenant=y")
    with pytest.raises(ValidationError, match="tenant"):
        shards.of("")


def test_a_shard_that_is_no_store_is_named_when_it_is_opened(written: Callable[[str], Path]) -> None:
    shards = Shards(written('default = "a"\n[shards]\na = "nowhere://x"'))
    with pytest.raises(ConfigurationError, match=r"shards\.a: .* is not the URL of a store"):
        shards.of("x")


# ── passwords ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_variable_of_the_environment_is_filled_in(
    written: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(storage, "open_storage", opened.append)
    text = """
    [shards]
    part = "postgresql://acms:${ACMS_PART}@h1,h2/acms?target_session_attrs=read-write"
    whole = "${ACMS_WHOLE}"
    [tenants]
    a = "part"
    b = "whole"
    """
    shards = Shards(written(text))
    with pytest.raises(ConfigurationError, match=r"shards\.part: the variable ACMS_PART is not set"):
        shards.open("a")
    monkeypatch.setenv("ACMS_PART", SECRET)
    monkeypatch.setenv("ACMS_WHOLE", "postgresql://u:p%40w@h/db?x=1")
    shards.open("a")
    shards.open("b")
    assert opened == [
        "postgresql://acms:s3cr3t%2Fp%40ss%3Aw%3Frd@h1,h2/acms?target_session_attrs=read-write&tenant=a",
        "postgresql://u:p%40w@h/db?x=1&tenant=b",
    ]
    monkeypatch.setenv("ACMS_WHOLE", "other.toml")
    with pytest.raises(ConfigurationError, match="not another file"):
        shards.open("b")


def test_no_error_and_no_repr_shows_a_password(
    written: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACMS_SECRET", "hidden-one")
    bad = (
        'default = "a"\n[shards]\na = "postgres+x://u:hidden-one@h/d"',
        'default = "a"\n[shards]\na = "postgresql://u:hidden-one@h/d?durability=never"',
        'default = "a"\n[shards]\na = "postgresql://u:${ACMS_SECRET}@h/d?durability=never"',
        'default = "a"\n[shards]\na = "postgresql://h/d?password=hidden-one&durability=never"',
        'default = "a"\n[shards]\na = "u:hidden-one@h"',
        'default = "b"\n[shards]\na = "postgresql://u:hidden-one@h/d"',
        '[shards]\na = "postgresql://u:hidden-one@h/d',
    )
    for text in bad:
        try:
            shards = Shards(written(text))
            assert "hidden-one" not in repr(shards)
            shards.of("x")
        except ConfigurationError as error:
            shown: BaseException | None = error
            while shown is not None:
                assert "hidden-one" not in f"{shown!r} {shown} {error.options}"
                shown = shown.__cause__
        else:
            raise AssertionError(f"{text} was accepted")
    shards = Shards(written('default = "a"\n[shards]\na = "postgresql://u:hidden-one@h/d"'))
    assert repr(shards).endswith("shards.toml': 1 shards, 0 tenants)")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///a.db?tenant=x", "sqlite:///a.db?tenant=x"),
        ("postgresql://h/db", "postgresql://h/db"),
        ("postgresql://user@h/db", "postgresql://user@h/db"),
        ("postgresql://u:pw@h1:5432,h2:5432/db", "postgresql://u:…@h1:5432,h2:5432/db"),
        ("postgresql://u:p/w?#@h/db", "postgresql://u:…@h/db"),
        ("postgresql:///db?host=/tmp&password=pw&x=1", "postgresql:///db?host=/tmp&password=…&x=1"),
        ("u:pw@h", "u:…@h"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert urls.without_password(url) == shown


# ── PostgreSQL ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("url", "dsn", "tenant", "durability"),
    [
        ("postgresql://h/db", "postgresql://h/db", "default", None),
        ("postgres://u:p%40w@h/db?tenant=a%20b", "postgres://u:p%40w@h/db", "a b", None),
        (
            "postgresql://h1:5432,h2:5432/db?target_session_attrs=read-write&tenant=a&durability=quorum",
            "postgresql://h1:5432,h2:5432/db?target_session_attrs=read-write",
            "a",
            "quorum",
        ),
        (
            "postgresql://%2Frun%2Fpg/db?tenant=a&options=-c%20x%3D1",
            "postgresql://%2Frun%2Fpg/db?options=-c%20x%3D1",
            "a",
            None,
        ),
        (
            "postgresql:///db?host=/run/pg&durability=relaxed",
            "postgresql:///db?host=/run/pg",
            "default",
            "relaxed",
        ),
    ],
)
def test_only_our_options_are_taken_out_of_a_url(
    url: str, dsn: str, tenant: str, durability: str | None
) -> None:
    found = urls.parse_postgres_url(url)
    assert (found.dsn, found.tenant, found.options.get("durability")) == (dsn, tenant, durability)


def test_an_unknown_durability_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="disk, quorum, relaxed"):
        open_storage("postgresql://u:pw@h/db?durability=memory")


@pytest.mark.parametrize("url", ["", "x", "mysql://h/db", "sqlite://", "a.toml?x=1"])
def test_what_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="is not the URL of a store") as caught:
        open_storage(url)
    assert any(option.startswith("postgresql://") for option in caught.value.options)
    assert any(".toml" in option for option in caught.value.options)


@pytest.mark.parametrize("url", ["memory://?x=1", "sqlite:///a.db?x=1"])
def test_an_option_that_a_store_does_not_have_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="there is no option 'x'"):
        open_storage(url)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("sqlite:///a.db?tenant=", "tenant is empty"),
        ("sqlite:///a.db?tenant=%20", "tenant is empty"),
        ("memory://?tenant", "tenant is empty"),
        ("shards.toml?tenant=", "tenant is empty"),
        ("postgresql://u:pw@h/db?tenant=", "tenant is empty"),
        ("sqlite:///a.db?tenant=a&tenant=b", "tenant is given twice"),
        ("sqlite:///a.db?mode=ro&mode=ro", "mode is given twice"),
        ("sqlite:///a.db?mode=", "mode must be ro or rw"),
        ("postgresql://u:pw@h/db?application_name=a&application_name=b", "application_name is given twice"),
    ],
)
def test_a_url_gives_an_option_once_and_names_its_tenant(url: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as caught:
        open_storage(url)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize("url", ["sqlite:///a.db?tenant=", "redis://h:6379/0?prefix=a&prefix=b"])
def test_a_url_of_a_key_value_memory_gives_an_option_once_and_names_its_tenant(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"tenant is empty|prefix is given twice"):
        open_kv(url)


async def test_shards_open_read_only_whatever_mode_their_url_names(written: Callable[[str], Path]) -> None:
    file = written('[shards]\na = "sqlite:///a.db?mode=rw&durability=relaxed"\n[tenants]\nacme = "a"\n')
    async with open_storage(f"{file}?tenant=acme") as store, ACMS("user_123", store) as session:
        await session.ingest("user", "hello")
    async with Shards(file, read_only=True) as shards, ACMS("user_123", shards.of("acme")) as session:
        with pytest.raises(StorageReadOnlyError):
            await session.ingest("user", "more")
