# SPDX-License-Identifier: LGPL-2.1-or-later
"""Interpreters: node (holes between its segments, V8's threads and generated code), python3 on a part of its own tests,
and perl, bash and small tools, where often or always nothing can move and the reason is told."""

import os
import re

import pytest

import helpers
from installed import find_node

BOTH = pytest.mark.parametrize("by_command", [False, pytest.param(True, marks=pytest.mark.check_all)], ids=["preload", "run"])
STAYS = "no whole huge page lies inside"

NODE = """
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
const { execFileSync } = require('child_process');
function work(n) {
    let x = 1;
    for (let i = 0; i < 300000; i++) x = Math.imul(x, 31) + (i ^ n) | 0;
    return [x, require('zlib').deflateSync(Buffer.alloc(100000, n)).length,
            require('crypto').createHash('sha256').update(String(x)).digest('hex')].join(' ');
}
if (!isMainThread) {
    parentPort.postMessage(work(workerData));
} else {
    const results = [];
    for (let i = 0; i < 4; i++)
        new Worker(__filename, { workerData: i }).on('message', m => { results[i] = m; })
            .on('exit', () => { if (++done === 4) finish(); });
    let done = 0;
    function finish() {
        console.log(results.join('\\n'), work(9), process.execPath);
        console.log(execFileSync(process.execPath, ['-p', '6*7']).toString());
        try { null.x } catch (e) { console.log(e.message) }
    }
}
"""


@BOTH
def test_node(prove, pool, tmp_path, by_command):
    node = find_node()
    if not node:
        pytest.skip("node is not installed")
    pool(128)
    script = tmp_path / "script.js"
    script.write_text(NODE)
    proof = prove([node, script], {"node": ("text", "rodata")}, options="backend=hugetlb", by_command=by_command)
    assert proof.moved[0] == 0 and "42" in proof.moved[1]
    assert proof.plans["node"].json["plan"]["text_share"] > 0.999


def verdict(result):
    """Exit status, number of tests and the skipped ones, without the time that they took."""
    status, _, stderr = result
    return status, re.findall(r"Ran (\d+) test|^(OK.*)$", stderr, re.M)


@BOTH
@pytest.mark.parametrize("module", [pytest.param("test_json", marks=pytest.mark.check_all), "test_re", pytest.param("test_ctypes", marks=pytest.mark.check_all)])
def test_python(prove, pool, module, by_command):
    if helpers.run(["/usr/bin/python3", "-c", f"import test.{module}"]).returncode != 0:
        pytest.skip(f"python3's own test.{module} is not installed (libpython3-testsuite)")
    pool(64)
    argv = ["/usr/bin/python3", "-B", "-m", "unittest", "-q", f"test.{module}"]
    name = os.path.basename(os.path.realpath(argv[0]))
    proof = prove(argv, {name: ("text", "rodata")}, options="backend=hugetlb", by_command=by_command, same=same_verdict,
                  timeout=120, TERM="dumb")
    assert proof.moved[0] == 0 and verdict(proof.moved)[1]


def same_verdict(plain, moved):
    return verdict(plain) == verdict(moved)


@BOTH
def test_perl(prove, pool, by_command):
    """perl is position-independent and small: at most load addresses nothing fits, at some all of it does."""
    pool(16)
    script = 'print join(",", map { $_ ** 2 } grep { "$_" =~ /^[1-9]+$/ } 1..2000), "\\n"; exit 6'
    argv = ["/usr/bin/perl", "-e", script]
    for _ in range(6):
        proof = prove(argv, {"perl": ("text", "rodata")}, options="backend=hugetlb,verbose=3", by_command=by_command,
                      same=lambda plain, moved: plain[:2] == moved[:2], always=False)
        told = proof.moved[2]
        if proof.plans["perl"].pages("text"):
            assert re.search(r"hugeld: perl: text \d pages? hugetlb", told)
        else:
            assert re.search(rf"hugeld: perl: .* r-x stays: {STAYS}", told)
        if proof.pages == 0:
            assert f"hugeld: perl: text stays: {STAYS}" in told


@BOTH
def test_bash(prove, pool, by_command):
    """bash is too small at every load address."""
    pool(16)
    argv = ["/bin/bash", "-c", "x=0; for i in {1..500}; do ((x += i)); done; echo $x | cat; exit 5"]
    proof = prove(argv, {}, options="backend=hugetlb,verbose=2,exe=bash", by_command=by_command,
                  same=lambda plain, moved: plain[:2] == moved[:2])
    assert proof.moved[:2] == (5, "125250\n")
    assert set(proof.moved[2].splitlines()) == {f"hugeld: bash: text stays: {STAYS}"}
    if not by_command:
        inspected = helpers.hugeld_json("inspect", "/bin/bash")["files"][0]
        assert inspected["range"]["pages_max"] == 0


@pytest.mark.parametrize("argv", [["/bin/true"], ["/bin/ls", "/"], ["/usr/bin/env", "-i", "/bin/echo", "x"]],
                         ids=lambda a: a[0])
def test_small_tools(pool, argv):
    pool(16)
    moved = helpers.hugeld("run", "--copy", "-o", "verbose=2", *argv)
    plain = helpers.run(argv)
    assert (moved.returncode, moved.stdout) == (plain.returncode, plain.stdout)
    name = os.path.basename(argv[0])
    assert f"hugeld: {name}: text stays: {STAYS}\n" in moved.stderr
