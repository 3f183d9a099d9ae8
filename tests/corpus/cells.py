"""Cells: text of ``%%sgl`` cells with what the notebook holds."""

CELLS = {
    "plain": ('s += "hi " + gen("x")\ns["x"]', {}),
    "roles": ('s += user(f"About {topic}?")\nwith assistant():\n    y = gen("y")\nlen(y)', {"topic": "cats"}),
    "names": ("count = count + 1\nitems = [count * i for i in range(3)]\ndel count\nitems", {"count": 4}),
    "nested_def": (
        "def twice(v):\n    return v * factor\nfactor = 3\ns += str(twice(2)) + gen('g')\n[twice(i) for i in (1, 2)]",
        {},
    ),
    "loop": (
        "for i in range(3):\n    s += gen(f'x{i}')\n    if s[f'x{i}'] == 'b': break\nelse:\n    i = -1\ni",
        {},
    ),
    "try_except": (
        "try:\n    s += gen('x')\n    int(s['x'])\nexcept ValueError as e:\n    kind = type(e).__name__\nkind",
        {},
    ),
    "annotated": ("x: int = 4\ny: str\nz: str = gen('q').name\nx, z", {}),
    "walrus": ("[(n := i) for i in range(3)]\nn", {}),
    "program_in_cell": (
        "@function\ndef p(s, w):\n    s += w + gen('p')\n    return s['p']\np(s, 'w'), p('own')['p']",
        {},
    ),
    "future": ("from __future__ import annotations\ndef f(x: nothing): return x\nf(2)", {}),
    "braces": (
        'd = {"a": 1}\ns += str({k: v for k, v in d.items()}) + \'{"json": [1]}\' + gen("j")\ns["j"]',
        {},
    ),
    "module_scope": ("exec('made = 5')\nsorted(k for k in locals() if k == 'made'), globals()['made']", {}),
    "lambda_and_class": (
        "class A:\n    v = 2\n    def m(self): return self.v + k\nk = 5\nf = lambda: A().m()\nf()",
        {},
    ),
    "statement_last": ("s += gen('x')\ny = s['x']", {}),
    "user_error": ("s += gen('x')\n1 / 0", {}),
}
