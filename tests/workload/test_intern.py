"""Interning against its definition: equal chain ids exactly where whole prefixes are equal."""

from __future__ import annotations

import random
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixsim.workload import reference
from prefixsim.workload.intern import build_chains, build_trie, namespaces
from prefixsim.workload.intern_kernels import cut_atoms
from prefixsim.workload.table import Source, Workload, make_workload

atoms = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5)), min_size=1, max_size=6)
request = st.tuples(atoms, st.one_of(st.integers(1, 4), atoms), st.integers(0, 2), st.integers(0, 1))


def workload(requests: list, sparse: int = 1) -> Workload:
    """A workload of (prompt atoms, output atoms or an unknown output's length, salt, lora)."""
    flat, prompt_atoms, offset, outputs = [], [], [0], []
    for prompt, output, _, _ in requests:
        flat += prompt
        prompt_atoms.append(len(prompt))
        if isinstance(output, list):
            flat += output
            outputs.append(sum(n for _, n in output))
        else:
            outputs.append(output)
        offset.append(len(flat))
    return make_workload(
        source=Source(kind="test"),
        prompt_tokens=[sum(n for _, n in p) for p, *_ in requests],
        output_tokens=outputs,
        atom_offset=offset,
        prompt_atoms=prompt_atoms,
        atom_id=[i * sparse for i, _ in flat],
        atom_tokens=[n for _, n in flat],
        salt=[s for *_, s, _ in requests],
        lora=[a for *_, a in requests],
        salt_names=("", "a", "b"),
        lora_names=("", "x"),
    )


def by_tokens(requests: list) -> Workload:
    """The same with every atom cut to one token: token j of content i has the id 10 i + j."""
    flat, prompt_atoms, offset = [], [], [0]
    for prompt, output, _, _ in requests:
        mine = [10 * i + j for i, n in prompt for j in range(n)]
        out = [10 * i + j for i, n in output for j in range(n)]
        flat += mine + out
        prompt_atoms.append(len(mine))
        offset.append(len(flat))
    return make_workload(
        source=Source(kind="test"),
        prompt_tokens=prompt_atoms,
        output_tokens=[b - a - p for a, b, p in zip(offset, offset[1:], prompt_atoms, strict=False)],
        atom_offset=offset,
        prompt_atoms=prompt_atoms,
        atom_id=flat,
        atom_tokens=None,
        salt=[s for *_, s, _ in requests],
        lora=[a for *_, a in requests],
    )


def spaces(w: Workload, rule: str) -> list[int]:
    """Namespaces by their definition: equal numbers exactly where the engine would share."""
    texts = [w.extra_key_names[e] + w.lora_names[a] for e, a in zip(w.extra_key, w.lora, strict=True)]
    keys = {
        "none": [0] * w.n,
        "vllm": list(zip(w.lora, w.salt, strict=True)),
        "sglang": list(zip(texts, w.salt, strict=True)),
    }
    seen: dict = {}
    return [seen.setdefault(key, len(seen)) for key in keys[rule]]


def sequence(w: Workload, r: int) -> list:
    """Atoms of a request, prompt and output."""
    prompt, output = reference.atoms_of(w, r)
    return prompt + output


def chain_rows(w: Workload, rule: str, g: int) -> list[list[int]]:
    """Chain ids of every row, written out."""
    offset, ids = build_chains(build_trie(w, rule), g).expand()
    return [ids[a:b].tolist() for a, b in pairwise(offset)]


@given(st.lists(request, min_size=1, max_size=8), st.sampled_from(["vllm", "sglang", "none"]), st.integers(1, 5))
@settings(max_examples=300)
def test_chain_ids_are_equal_exactly_where_prefixes_are(requests, rule, g):
    w = workload(requests)
    assert reference.same_partition(namespaces(w, rule).tolist(), spaces(w, rule))
    expected = reference.chain_rows(w, spaces(w, rule), g)
    found = chain_rows(w, rule, g)
    assert [len(row) for row in found] == [len(row) for row in expected]
    flat = [x for row in found for x in row]
    assert reference.same_partition(flat, [x for row in expected for x in row])
    chains = build_chains(build_trie(w, rule), g)
    assert sorted(set(flat)) == list(range(chains.n_chains))  # dense
    for row, a, b in zip(found, chains.run_offset, chains.run_offset[1:], strict=False):  # runs are as long as can be
        assert b - a == sum(y != x + 1 for x, y in pairwise([-2, *row]))


@given(st.lists(st.tuples(atoms, atoms, st.integers(0, 1), st.just(0)), min_size=1, max_size=6), st.integers(1, 4))
def test_cutting_atoms_to_tokens_changes_nothing(requests, g):
    long, short = chain_rows(workload(requests), "vllm", g), chain_rows(by_tokens(requests), "vllm", g)
    assert [len(r) for r in long] == [len(r) for r in short]
    assert reference.same_partition([x for r in long for x in r], [x for r in short for x in r])


@given(st.lists(request, min_size=1, max_size=8))
def test_trie_is_its_twin(requests):
    w = workload(requests)
    trie = build_trie(w, "vllm")
    rows = [sequence(w, r) for r in range(w.n)]
    twin = reference.intern_rows(reference.cut_atoms(rows), namespaces(w, "vllm"))
    assert trie.element_tokens.tolist() == twin["tokens"]
    assert trie.element_end.tolist() == twin["end"]
    assert trie.parent.tolist() == twin["parent"]
    assert trie.created_end.tolist() == twin["created_end"]
    assert reference.rows_written_out(trie) == twin["rows"]


@given(st.lists(request, min_size=1, max_size=6))
def test_sparse_ids_do_not_matter(requests):
    """Ids up to 2^31: tables must not be as long as the largest id."""
    dense, sparse = workload(requests), workload(requests, sparse=500_000_000)
    assert chain_rows(dense, "vllm", 2) == chain_rows(sparse, "vllm", 2)


def test_pieces_of_one_id_are_equal_or_disjoint():
    w = workload([([(0, 5), (1, 2)], 1, 0, 0), ([(0, 2)], 1, 0, 0), ([(0, 3), (1, 2)], 1, 0, 0)])
    offset, piece, tokens = cut_atoms(w.atom_offset, w.prompt_atoms, w.atom_id, w.atom_tokens, w.output_tokens)
    rows = [list(zip(piece[a:b].tolist(), tokens[a:b].tolist(), strict=True)) for a, b in pairwise(offset)]
    assert [t for _, t in rows[0]] == [2, 1, 2, 2, 1]
    assert rows[1][:1] == rows[0][:1]
    assert rows[2][:2] == rows[0][:2]


@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_rows_that_go_on_from_others(seed, g):
    """Conversations: rows begin with the whole of the row before, or of an earlier one, or leave it on the way."""
    rng = random.Random(seed)
    rows: list[list[tuple[int, int]]] = []
    requests = []
    for _ in range(rng.randint(2, 25)):
        stem = rng.choice([*rows[-1:], *rows]) if rows and rng.random() < 0.8 else []
        stem = stem[: rng.randint(0, len(stem))] if rng.random() < 0.3 else stem
        prompt = stem + [(rng.randrange(4), rng.randint(1, 2)) for _ in range(rng.randint(not stem, 4))]
        output = [(rng.randrange(4), rng.randint(1, 2)) for _ in range(rng.randint(1, 3))] if rng.random() < 0.8 else 2
        requests.append((prompt, output, int(rng.random() < 0.1), 0))
        rows.append(prompt + (output if isinstance(output, list) else []))
    w = workload(requests)
    trie = build_trie(w, "vllm")
    twin = reference.intern_rows(reference.cut_atoms([sequence(w, r) for r in range(w.n)]), spaces(w, "vllm"))
    assert reference.rows_written_out(trie) == twin["rows"]
    assert trie.run_start.shape[0] == sum(y != x + 1 for row in twin["rows"] for x, y in pairwise([-2, *row]))
    found, chains = chain_rows(w, "vllm", g), build_chains(trie, g)
    expected = reference.chain_rows(w, spaces(w, "vllm"), g)
    assert reference.same_partition([x for row in found for x in row], [x for row in expected for x in row])
    assert chains.run_start.shape[0] == sum(y != x + 1 for row in found for x, y in pairwise([-2, *row]))


def test_a_row_that_ends_inside_an_earlier_one():
    """It stops there, whatever the next row begins with."""
    w = workload([([(0, 1), (1, 1), (2, 1)], [(3, 1)], 0, 0), ([(0, 1), (1, 1)], [(2, 1)], 0, 0), ([(3, 1)], [(0, 1)], 0, 0),
                  ([(0, 1)], [(1, 1)], 0, 0)])  # fmt: skip
    assert reference.rows_written_out(build_trie(w, "vllm")) == [[0, 1, 2, 3], [0, 1, 2], [4, 5], [0, 1]]


def test_rows_that_hop_between_many_branches():
    """Elements crowd their table; and runs of blocks that go on are joined where those of elements are not."""
    rng = random.Random(1)
    firsts = [rng.choice([rng.randrange(3), rng.randrange(500)]) for _ in range(340)]
    w = workload([([(i, 1)] + [(rng.randrange(3), 1) for _ in range(39)], 1, 0, 0) for i in firsts])
    twin = reference.intern_rows(reference.cut_atoms([sequence(w, r) for r in range(w.n)]), namespaces(w, "vllm"))
    trie = build_trie(w, "vllm")
    assert reference.rows_written_out(trie) == twin["rows"]
    for g in (2, 3, 5):
        found, chains = chain_rows(w, "vllm", g), build_chains(trie, g)
        expected = reference.chain_rows(w, [0] * w.n, g)
        assert reference.same_partition([x for row in found for x in row], [x for row in expected for x in row])
        assert chains.run_start.shape[0] == sum(y != x + 1 for row in found for x, y in pairwise([-2, *row]))


def test_runs_outgrow_their_first_room():
    """Row k has k - 1 elements of k - 1 earlier rows: as many runs, far more in all than were reserved."""
    requests = [([(i, 1) for i in range(k)] + [(1000 + k, 1)], 1, 0, 0) for k in range(80)]
    w = workload(requests)
    trie = build_trie(w, "vllm")
    assert trie.run_start.shape[0] > 3000
    twin = reference.intern_rows(reference.cut_atoms([sequence(w, r) for r in range(w.n)]), namespaces(w, "vllm"))
    assert reference.rows_written_out(trie) == twin["rows"]


def test_rows_below_one_block_have_no_chains():
    w = workload([([(0, 3)], 1, 0, 0), ([(0, 2)], [(1, 2)], 0, 0)])
    chains = build_chains(build_trie(w, "vllm"), 5)
    offset, ids = chains.expand()
    assert (chains.n_chains, offset.tolist(), ids.tolist()) == (0, [0, 0, 0], [])


def test_single_tokens_with_unknown_outputs():
    """No lengths are kept where every atom is one token; an output nobody knows is then one longer piece."""
    w = make_workload(
        source=Source(kind="test"), prompt_tokens=[3, 3], output_tokens=[4, 2], atom_offset=[0, 3, 8],
        prompt_atoms=[3, 3], atom_id=[5, 6, 7, 5, 6, 7, 8, 9], atom_tokens=None,
    )  # fmt: skip
    assert chain_rows(w, "vllm", 3) == [[0, 1], [0]]
    first, second = chain_rows(w, "vllm", 1)
    assert first[:3] == second[:3]
    assert not set(first[3:]) & set(second[3:])


@pytest.mark.parametrize("rule", ["vllm", "sglang", "none"])
def test_namespaces_of_two_requests(rule):
    """Every way in which two requests can differ."""
    for first, second in product(product(range(2), repeat=3), repeat=2):
        salt, lora, key = zip(first, second, strict=True)
        w = make_workload(
            source=Source(kind="test"), prompt_tokens=[4] * 2, output_tokens=[1] * 2, atom_offset=[0, 1, 2],
            prompt_atoms=[1] * 2, atom_id=[0] * 2, atom_tokens=[4] * 2, salt=salt, lora=lora, extra_key=key,
            salt_names=("", "s"), lora_names=("", "l"), extra_key_names=("", "k"),
        )  # fmt: skip
        assert reference.same_partition(namespaces(w, rule).tolist(), spaces(w, rule)), (first, second)


def test_sglang_joins_extra_key_and_lora_as_text():
    """("ab", "c") and ("a", "bc") are one namespace to the engine, which joins the strings; salts stay apart."""
    w = make_workload(
        source=Source(kind="test"), prompt_tokens=[4] * 4, output_tokens=[1] * 4, atom_offset=[0, 1, 2, 3, 4],
        prompt_atoms=[1] * 4, atom_id=[0] * 4, atom_tokens=[4] * 4, extra_key=[1, 2, 1, 0], lora=[1, 2, 1, 0],
        salt=[0, 0, 1, 0], extra_key_names=("", "ab", "a"), lora_names=("", "c", "bc"), salt_names=("", "s"),
    )  # fmt: skip
    space = namespaces(w, "sglang").tolist()
    assert space[0] == space[1]
    assert len(set(space)) == 3
    assert len(set(namespaces(w, "vllm").tolist())) == 4
