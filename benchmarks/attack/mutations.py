"""Random changes to bytes, texts and trees of plain values, as faults and attackers make them."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

import yaml

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**26, -(10**400), 1.5, 1e308, -1e308),
    *(float("nan"), float("inf"), -float("inf"), "", " ", "0", "1e309", "nan", "null", "auto"),
    *("é", "\ud800", "\0", "\x1b[31mred", "`<b>` & co", "=1+1", "../../x/y", "/dev/null"),
    *("a" * 300, "9" * 5000, "\n\n", [], {}, [[]], [None], {"": None}, [[[[[[]]]]]], [1] * 1000),
)
"""Values that readers did not expect."""
WORDS: tuple[bytes, ...] = (
    *(b"0x_", b"2020-99-99", b"2020-13-01T25:61:61", b"!!python/object:os.system x", b"&a *a"),
    *(
        b"[" * 3000,
        b"{a: " * 3000,
        b"- " * 3000,
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\0",
        b"\xed\xa0\x80",
    ),
    *(b"12345678901234567890123456", b"-1", b"1e308", b"nan", b"\r", b"\x0c", b"\t", b'"', b"'"),
    *(b"\x1b[2J", b"A" * 300, b"9" * 5000, b"null", b"{}", b"[]", b"NaN", b"Infinity", b"1_000"),
    *("é".encode(), "é".encode("latin-1"), "\u2028".encode(), b"<<: *a", b"? ", b"1:2:3"),
)


def mutate_bytes(content: bytes, random: Random) -> bytes:
    """Change bytes in one to four places."""
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        content = random.choice(BYTE_CHANGES)(content, random)
    return content


def flip(content: bytes, random: Random) -> bytes:
    """Flip one bit."""
    if not content:
        return b"\1"
    changed, bit = bytearray(content), random.randrange(8 * len(content))
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def _cut(content: bytes, random: Random) -> bytes:
    return content[: random.randrange(len(content) + 1)]


def _delete(content: bytes, random: Random) -> bytes:
    start, stop = _span(content, random)
    return content[:start] + content[stop:]


def _repeat(content: bytes, random: Random) -> bytes:
    start, stop = _span(content, random)
    return content[:stop] + content[start:stop] * random.randint(1, 3) + content[stop:]


def _zero(content: bytes, random: Random) -> bytes:
    start, stop = _span(content, random)
    return content[:start] + bytes(stop - start) + content[stop:]


def _insert(content: bytes, random: Random) -> bytes:
    start = random.randrange(len(content) + 1)
    return content[:start] + random.choice(WORDS) + content[start:]


def _overwrite(content: bytes, random: Random) -> bytes:
    start, stop = _span(content, random)
    return content[:start] + random.choice(WORDS) + content[stop:]


def _noise(content: bytes, random: Random) -> bytes:
    start, stop = _span(content, random)
    return content[:start] + random.randbytes(stop - start) + content[stop:]


BYTE_CHANGES: tuple[Callable[[bytes, Random], bytes], ...] = (
    *(flip, flip, _cut, _delete, _repeat, _zero, _insert, _insert, _overwrite, _noise),
)


def _span(content: bytes, random: Random) -> tuple[int, int]:
    start = random.randrange(len(content) + 1)
    return start, min(len(content), start + int(2 ** random.uniform(0, 10)))


def mutate_tree(tree: Any, random: Random) -> Any:
    """Return a copy of plain JSON values with one to three of them changed."""
    tree = json.loads(json.dumps(tree))
    for _ in range(random.choice((1, 1, 2, 3))):
        places = list(_places(tree))
        if not places:
            return random.choice(VALUES)
        parent, key = random.choice(places)
        _change(parent, key, random)
    return random.choice(VALUES) if random.random() < 0.03 else tree


def _places(tree: Any) -> Any:
    """Yield every place of a tree as its parent and key."""
    keys = tree.keys() if isinstance(tree, dict) else range(len(tree))
    for key in list(keys):
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from _places(tree[key])


def _change(parent: Any, key: Any, random: Random) -> None:
    change = random.randrange(6)
    if change == 0:
        del parent[key]
    elif change == 1 and isinstance(parent, dict):
        parent[random.choice([str(v)[:400] for v in VALUES])] = parent.pop(key)
    elif change == 2 and isinstance(parent, list):
        parent.insert(key, parent[key])
    elif change == 3:
        parent[key] = [parent[key]]
    else:
        parent[key] = random.choice(VALUES)


def mutate_json(content: bytes, random: Random) -> bytes:
    """Change the tree of a JSON text."""
    text = json.dumps(mutate_tree(json.loads(content), random), ensure_ascii=random.random() < 0.5)
    return text.encode("utf-8", "surrogatepass")


def mutate_json_lines(content: bytes, random: Random) -> bytes:
    """Change the tree of one line of JSON."""
    lines = content.splitlines()
    place = random.randrange(len(lines))
    lines[place] = mutate_json(lines[place], random)
    return b"\n".join(lines) + b"\n"


def mutate_yaml(content: bytes, random: Random) -> bytes:
    """Change the tree of a YAML text."""
    tree = mutate_tree(yaml.safe_load(content), random)
    return json.dumps(tree).encode() if random.random() < 0.3 else yaml.safe_dump(tree).encode()
