"""What a client may hold is granted before it is taken, and given back once."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as some

import openhtp as htp
from openhtp.core.limits import SESSION_LIMIT_BYTES
from openhtp.memory.ledger import HeldMemory, Ledger, MemoryGrant, MemoryUse, SpillGroup, Tenant, largest_backup


def test_a_domain_is_bounded() -> None:
    ledger, tenant = Ledger(), Tenant("context 7")
    ledger.place(tenant, SESSION_LIMIT_BYTES - 10)
    with pytest.raises(htp.OutOfMemory) as caught:
        ledger.take(tenant, 11, MemoryUse.IO, "the memory")
    assert caught.value.name == "QNN_CONTEXT_ERROR_MEM_ALLOC"
    for said in ("the memory needs 11 B", "process domain 0", "10 B left", "of 3.75 GiB", "context 7 3.75 GiB"):
        assert said in caught.value.message
    assert ledger.used == SESSION_LIMIT_BYTES - 10
    ledger.take(tenant, 10, MemoryUse.IO, "the memory")


def test_a_grant_is_given_back_once() -> None:
    ledger, tenant = Ledger(limit=100), Tenant("context 1")
    weights = ledger.place(tenant, 60)
    ledger.take(tenant, 30, MemoryUse.IO, "the memory")
    weights.give_back()
    weights.give_back()
    assert ledger.by_use() == {"weights": 0, "spill_fill": 0, "vtcm_backup": 0, "io": 30, "reserve": 0}


def test_a_message_says_who_holds_what_and_stays_short() -> None:
    ledger = Ledger(limit=100, most=2)
    for number in range(40):
        ledger.place(Tenant(f"context {number}"), 5)
    with pytest.raises(htp.OutOfMemory) as caught:
        ledger.place(Tenant("context 99"), 6, 2, room_for=1)
    text = caught.value.message
    assert "context 99 needs 9 B (weights 6 B, spill-fill 2 B, room for I/O 1 B)" in text
    assert "17 more" in text
    assert "(there can be 2)" in text
    assert len(text) < 700


def test_graphs_prepared_here_stay_in_the_first_domain() -> None:
    ledger = Ledger(limit=100, most=4)
    ledger.place(Tenant("a"), 90)
    with pytest.raises(htp.OutOfMemory, match=r"prepared here must be in process domain 0.*make it from a binary"):
        ledger.place(Tenant("b", anywhere=False), 20)


def test_a_group_holds_one_spill_fill_buffer_for_each_domain() -> None:
    ledger, group = Ledger(limit=100, most=2), SpillGroup(30, "group 1")
    first, second, third = (Tenant(name, group=group) for name in "abc")
    ledger.place(first, 30, 30)
    ledger.place(second, 30, 20)
    assert ledger.used == 90
    ledger.place(third, 30, 30)
    assert third.domain is not None
    assert third.domain.number == 1
    assert ledger.used == 150
    with pytest.raises(
        htp.InvalidArgument, match="needs a spill-fill buffer of 31 bytes, and that of its group has 30"
    ):
        ledger.place(Tenant("d", group=group), 1, 31)
    ledger.leave(first)
    assert ledger.by_use()["spill_fill"] == 60
    ledger.leave(second)
    ledger.leave(third)
    assert ledger.used == 0
    assert len(ledger.domains) == 1


def test_backup_buffers_are_each_graphs_own_but_in_concurrent_groups() -> None:
    """Contexts that share a spill-fill buffer in turn have backup buffers of their own."""
    for shared, backups in ((None, 30), (12, 12)):
        ledger, group = Ledger(limit=100), SpillGroup(30, "group 1", backup=shared)
        first, second = (Tenant(name, group=group) for name in "ab")
        ledger.place(first, 5, 30, 10)
        ledger.place(second, 5, 30, 20)
        assert ledger.by_use() == {
            "weights": 10,
            "spill_fill": 30,
            "vtcm_backup": backups,
            "io": 0,
            "reserve": 0,
        }
        ledger.leave(first)
        assert ledger.by_use()["vtcm_backup"] == (12 if shared else 20)
        ledger.leave(second)
        assert ledger.used == 0


def test_a_context_must_have_room_for_its_backup_buffers() -> None:
    ledger = Ledger(limit=100)
    with pytest.raises(htp.OutOfMemory, match=r"needs 101 B \(weights 60 B, spill-fill 1 B, VTCM backup 40 B\)"):
        ledger.place(Tenant("a"), 60, 1, 40)
    group = SpillGroup(30, "group", backup=30)
    ledger.place(Tenant("b", group=group), 40, 1, 99)
    with pytest.raises(htp.OutOfMemory):
        ledger.place(Tenant("c"), 0, 0, 1)
    ledger.place(Tenant("d", group=group), 0, 1, 99)


def test_backup_buffers_of_small_domains_are_to_scale() -> None:
    assert largest_backup(8 << 20, SESSION_LIMIT_BYTES) == 8 << 20
    assert largest_backup(8 << 20, SESSION_LIMIT_BYTES // 256) == 32 << 10
    assert Ledger(vtcm_bytes=8 << 20).backup_bytes == 8 << 20


def test_a_reserve_is_for_the_io_of_its_context() -> None:
    ledger, mine, other = Ledger(limit=100), Tenant("mine"), Tenant("other")
    ledger.place(mine, 50)
    ledger.reserve(mine, 40)
    with pytest.raises(htp.OutOfMemory):
        ledger.take(other, 20, MemoryUse.IO, "the memory")
    ledger.take(mine, 25, MemoryUse.IO, "the memory")
    assert ledger.by_use() == {"weights": 50, "spill_fill": 0, "vtcm_backup": 0, "io": 25, "reserve": 15}
    ledger.take(mine, 20, MemoryUse.IO, "the memory")
    assert ledger.by_use()["reserve"] == 0


@given(
    some.lists(some.tuples(some.sampled_from(["place", "take", "leave", "give"]), some.integers(0, 60))),
    some.sampled_from([None, 0, 20]),
)
def test_no_domain_ever_holds_more_than_it_has(acts: list[tuple[str, int]], backup: int | None) -> None:
    ledger, grants = Ledger(limit=100, most=3), list[MemoryGrant | HeldMemory]()
    group = SpillGroup(0, "group", grows=True, backup=backup)
    tenants: list[Tenant] = []
    for act, nbytes in acts:
        try:
            if act == "place":
                tenant = Tenant(str(len(tenants)), group=group if nbytes % 2 else None)
                grants.append(ledger.place(tenant, nbytes, nbytes // 2, nbytes // 3))
                tenants.append(tenant)
            elif act == "take" and tenants:
                grants.append(ledger.take(tenants[nbytes % len(tenants)], nbytes, MemoryUse.IO, "the memory"))
            elif act == "leave" and tenants:
                ledger.leave(tenants.pop(nbytes % len(tenants)))
            elif grants:
                grants.pop(nbytes % len(grants)).give_back()
        except htp.OutOfMemory:
            pass
        for domain in ledger.domains:
            assert 0 <= domain.used == sum(grant.nbytes for grant in domain.grants) <= domain.limit
    for tenant in tenants:
        ledger.leave(tenant)
    assert ledger.used == 0
