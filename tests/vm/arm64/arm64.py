# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tests of the arm64 guests: the core's own, generated programs, and stock ones.

Whether the text's pages refuse wrong branches (PROT_BTI) is compared by every proof (proof.check_object), and each
generated program tries such branches, and a return to a forged address (pointer authentication)."""

import importlib.util
import json
import os
import pathlib
import signal
import sys

import pytest

import helpers
import programs
from hugepages import free_pages
from proof import check_span, guards, read_image, read_plans
from smaps import read_smaps

HERE = pathlib.Path(__file__).resolve().parent
TESTS = HERE.parents[1]
HUGE = int(os.environ.get("T_HUGE_BYTES", helpers.HUGE))  # of the guest, while its programs are built on the host
IS_SMALL = HUGE <= 2 << 20
ALL = ("text", "rodata")

# The functions of programs.TEXT, with the same results.  The zeros between them are permanently undefined instructions.
FUNCTIONS = """
    .macro functions section, name, count
    .section \\section, "ax", @progbits
    .p2align 12
    .globl \\name
    .type \\name, @function
\\name:
    .set i, 0
    .rept \\count
    .cfi_startproc
    hint #34 // bti c
    add x0, x0, x0, lsl #1
    mov w1, 12345+i*7
    add x0, x0, x1
    ret
    .cfi_endproc
    .p2align 10, 0
    .set i, i+1
    .endr
    .size \\name, . - \\name
    .endm

    .macro trampoline section, name
    .section \\section, "ax", @progbits
    .globl \\name
    .type \\name, @function
\\name:
    .cfi_startproc
    hint #25 // paciasp
    .cfi_negate_ra_state
    stp x29, x30, [sp, #-16]!
    .cfi_def_cfa_offset 16
    .cfi_offset 29, -16
    .cfi_offset 30, -8
    mov x29, sp
    blr x0
    ldp x29, x30, [sp], #16
    .cfi_restore 30
    .cfi_restore 29
    .cfi_def_cfa_offset 0
    hint #29 // autiasp
    .cfi_negate_ra_state
    ret
    .cfi_endproc
    .size \\name, . - \\name
    .globl forge
    .hidden forge
    .type forge, @function
forge:
    hint #34
    mov x9, x30
    hint #25
    eor x30, x30, #1 << 54 // of the signature
    hint #29
    eor x10, x30, x9
    eor x10, x10, #1 << 54
    cbnz x10, 1f
    mov x30, x9 // not checked
1:  ret
    .size forge, . - forge
    .endm

"""


def make_text():
    """programs.TEXT for this machine.  The functions stand in the middle of at least three huge pages, so that they lie
    in whole ones wherever the program is loaded; the page in which the text ends has enough of it to be moved."""
    first, last = "    functions big_a, text_a, 4096+128\n", "    functions big_c, text_c, 4096+128\n"
    layout = programs.TEXT[programs.TEXT.index(first):]
    assert last in layout
    space = f"    .space {max(0, 3 * HUGE - (8 << 20)) // 2 + HUGE // 16}\n"
    return FUNCTIONS + '    .section big_a, "ax", @progbits\n' + space + layout.replace(last, last + space)


START = ["-nostartfiles", HERE / "start.c"]
SEPARATE = "-Wl,-z,separate-code"
BTI = ["-mbranch-protection=standard", "-Wl,-z,force-bti"]

programs.TEXT = make_text()
# A function that another object calls needs a landing pad.
programs.BIG = '#pragma GCC target("branch-protection=standard")\n' + programs.BIG
programs.EXECUTABLES = {
    "nopie": ["-no-pie", *START],
    "pie": ["-pie", *START],
    "separate": ["-no-pie", SEPARATE, *START],
    "separate-pie": ["-pie", SEPARATE, *START],
    "bti": ["-no-pie", SEPARATE, *BTI, *START],
    "bti-pie": ["-pie", *BTI, *START],
}
VARIANTS = [*programs.EXECUTABLES] if IS_SMALL else ["pie", "bti"]  # the others are as large again, and no different
WORDS = 6 * 2**17  # 6 MiB of writable data


def load(folder, name):
    """The module NAME of another folder of tests."""
    sys.path.append(str(TESTS / folder))
    spec = importlib.util.spec_from_file_location(f"{folder}_{name}", TESTS / folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


surroundings, faults = load("surroundings", "conftest"), load("system", "test_faults")
surround, tool, first = surroundings.surround, surroundings.tool, surroundings.first


LATER = {"dso": [], "dso-bti": [*BTI, "-nostartfiles"]}


@pytest.fixture(scope="session")
def opens(builder):
    """opens(variant): (a program that opens a library, the library)."""

    def make(variant):
        program = builder.once("opens", lambda folder: builder.compile(folder / "opens", HERE / "opens.c"))
        return program, builder.once(variant, lambda folder: builder.compile(
            folder / "libbig.so", "-shared", SEPARATE, *builder.object(), *LATER[variant]))

    return make


def refuses(result):
    """Whether every branch that a generated program tried was refused, or none, as its output says.  The forged return
    always is."""
    branches, returns = result[1].splitlines()[:2]
    count = branches.removeprefix("branches refused: ")
    assert count in ("0", "32") and returns == "returns refused: 1", result
    return count == "32"


def test_huge_page_size():
    assert {"bti", "paca"} <= set(pathlib.Path("/proc/cpuinfo").read_text().split())
    assert helpers.hugeld_json("doctor")["huge_page_bytes"] == HUGE


@pytest.mark.parametrize("variant, backend", [*((v, "hugetlb") for v in VARIANTS), ("pie", "thp"), ("bti", "thp")])
def test_program(builder, prove, thp, variant, backend):
    if backend == "thp":
        pathlib.Path("/proc/sys/vm/compact_memory").write_text("1")
    app = builder.executable(variant)
    proof = prove([app], {app.name: ALL}, options=f"backend={backend}", backend=backend)
    assert proof.pages >= 2
    assert refuses(proof.moved) == variant.startswith("bti")


@pytest.mark.parametrize("variant", [v for v in VARIANTS if "pie" not in v or v == "nopie"])
def test_image(builder, prove, images, variant):
    """Mapped from an image, with the same protection; a PIE lies at an address that does not fit its image."""
    app = builder.executable(variant)
    images.add(app)
    proof = prove([app], {app.name: ALL}, options=images.options("data=off"), backend="image")
    assert proof.pages >= 2
    assert refuses(proof.moved) == variant.startswith("bti")


@pytest.mark.skipif(not IS_SMALL, reason="n/a: a hundred MiB for each library")
@pytest.mark.parametrize("variant", LATER)
def test_library_that_comes_later(opens, library, variant):
    program, shared = opens(variant)
    env = helpers.preload(library, patterns="libbig*", options="backend=hugetlb,data=off,verbose=2")
    check_later([program, shared], env, program, shared, variant)


def check_later(argv, env, program, shared, variant, plan_options=None, backend="hugetlb", mapped=None):
    """Each time that the library is opened it moves as planned, and dlclose gives the pages back.  MAPPED: its path in maps."""
    free = free_pages()
    process = helpers.start(argv, env)
    try:
        for _ in range(3):
            helpers.wait_until(lambda: helpers.state_of(process.pid) in ("T", "Z", ""), what="opens stopping")
            image = read_image(process.pid)
            plan = read_plans(process.pid, [mapped or shared], plan_options)["libbig.so"]
            spans = [s for s in plan.spans if s.kind in ALL]
            assert plan.pages("text") >= 1
            for span in spans:
                check_span(image, span, backend)
            assert guards(image, image.find("libbig.so")) == {variant == "dso-bti"}
            assert free - free_pages() == (sum(s.pages for s in spans) if backend == "hugetlb" else 0)
            process.send_signal(signal.SIGCONT)
            helpers.wait_until(lambda: helpers.state_of(process.pid) != "T", what="going on")
        stdout, stderr = process.communicate(timeout=helpers.PATIENCE)
    finally:
        helpers.end_process(process)
    assert process.returncode == 0 and stderr.count("hugeld: libbig.so: text") == 3, stderr
    assert stdout == helpers.run(["sh", "-c", f"{program} {shared} & pid=$!; while kill -CONT $pid 2> /dev/null; do :; "
                                  "done; wait $pid"]).stdout


def test_threads(builder, surround, first):
    """Two threads execute the text while it is replaced."""
    app = builder.executable("bti")
    outcome = surround([app], {app.name: ALL}, first=[first], options="backend=hugetlb", T_FIRST="threads:2")
    assert outcome.returncode == 3 and refuses(outcome.plain)


def test_rolls_back(builder, strace, library, empty_library, pause_library):
    """The first mremap is the probe, the second brings the old text aside, the third the new one into its place."""
    app = builder.executable("bti")
    with faults.waiting([app], helpers.preload(empty_library, pause_library)) as process:
        plain_image, plain_lines = read_image(process.pid), process.lines
    env = helpers.preload(library, pause_library, options="backend=hugetlb")
    assert not faults.run_with_fault(strace("mremap", "ENOMEM", 3), app, env, plain_image, plain_lines,
                                     "backend=hugetlb", "hugetlb")


def status_of(process):
    """`hugeld status` says the same as smaps of the stopped PROCESS, which then goes on.  Its exit status is the answer
    to whether there are huge pages."""
    hugetlb = sum(m.hugetlb_bytes for m in read_smaps(process.pid))
    result = helpers.hugeld("status", "--json", process.pid)
    assert result.returncode == (0 if hugetlb else 1), result.stderr
    [found] = json.loads(result.stdout)["processes"]
    assert sum(o["backends"]["hugetlb_pages"] for o in found["objects"]) * HUGE == hugetlb, found
    return process.finish()


def test_no_attach(builder, empty_library, pause_library):
    """Running programs are moved on x86-64 only, and it says so."""
    with faults.waiting([builder.executable("bti")], helpers.preload(empty_library, pause_library)) as process:
        before = pathlib.Path(f"/proc/{process.pid}/maps").read_text()
        for command in "attach", "detach":
            helpers.one_line(helpers.hugeld(command, process.pid), 1, "running processes are moved on x86-64 only")
        assert pathlib.Path(f"/proc/{process.pid}/maps").read_text() == before
        assert process.poll() is None


# --- stock programs: (command, its output, pages of 2 MiB at least) ---


def python(_):
    script = "import json, re, sys; print(json.dumps([re.sub('a+', 'b', 'caat'), sum(range(10**5)), sys.maxsize]))"
    return [os.path.realpath(sys.executable), "-S", "-c", script], '["cbt", 4999950000, ', 2


SOURCE = "struct list { struct list *next; int value; };\n" + "".join(
    f"int sum_{i}(struct list *l) {{ int s = {i}; for (; l; l = l->next) s += l->value * {i}; return s; }}\n"
    for i in range(20))


def compiler(folder):
    source = folder / "source.cc"
    source.write_text(SOURCE)
    return ["/usr/bin/cc1plus", "-quiet", "-O2", "-fpreprocessed", source, "-o", "-"], "sum_19", 12


STOCK = {"python": python, "compiler": compiler}


@pytest.mark.parametrize("name", STOCK)
def test_stock_program(prove, tmp_path, name):
    """In a huge page of 32 MiB none has room, and they stay as they are."""
    argv, expected, pages = STOCK[name](tmp_path)
    moved = {os.path.basename(argv[0]): ALL} if IS_SMALL else {}
    proof = prove(argv, moved, options="backend=hugetlb", work=status_of)
    assert proof.moved[0] == 0 and expected in proof.moved[1]
    assert proof.pages >= pages or not IS_SMALL


CONTIGUOUS = 2 << 20


def pool_file(size, name="nr_hugepages"):
    return pathlib.Path(f"/sys/kernel/mm/hugepages/hugepages-{size // 1024}kB/{name}")


@pytest.fixture
def contiguous_pool():
    """Pages of 2 MiB in the pool, and none of 32 MiB; how many."""
    before = pool_file(HUGE).read_text()
    pool_file(HUGE).write_text("0")
    pool_file(CONTIGUOUS).write_text("60")
    yield int(pool_file(CONTIGUOUS).read_text())
    assert pool_file(CONTIGUOUS, "free_hugepages").read_text() == pool_file(CONTIGUOUS).read_text()
    pool_file(CONTIGUOUS).write_text("0")
    pool_file(HUGE).write_text(before)
    assert pool_file(HUGE).read_text() == before


@pytest.mark.skipif(IS_SMALL, reason="n/a: a PMD maps 2 MiB")
@pytest.mark.parametrize("way", ["preload", "ldso"])
@pytest.mark.parametrize("name", ["python", "compiler"])
def test_contiguous(contiguous_pool, pause_library, tmp_path, name, way):
    """Programs without a whole page of 32 MiB, on pages of 2 MiB that contiguous entries map."""
    argv, expected, pages = STOCK[name](tmp_path)
    options = "backend=hugetlb,data=off"
    plain = helpers.run(argv)
    [file] = helpers.hugeld_json("inspect", "-o", options, argv[0])["files"]
    assert file["huge_page_bytes"] == CONTIGUOUS
    spans = [(int(s["start"], 0), int(s["end"], 0)) for s in file["plan"]["spans"]]
    assert sum(end - start for start, end in spans) >= pages * CONTIGUOUS
    assert file["pool_pages"] == sum(end - start for start, end in spans) // CONTIGUOUS and contiguous_pool == 60
    run = [helpers.HUGELD, "run", "--via", way, "-o", options, "--", *argv]
    with helpers.paused(run, helpers.preload(pause_library), os.path.basename(argv[0])) as process:
        huge = [m for m in read_smaps(process.pid) if m.is_hugetlb]
        assert {m.kb["KernelPageSize"] for m in huge} == {CONTIGUOUS // 1024} and {m.permissions for m in huge} == {"r-xp"}
        assert [(m.start, m.end) for m in huge] == spans
        assert sum(m.hugetlb_bytes for m in huge) == sum(end - start for start, end in spans)
        [found] = helpers.hugeld_json("status", process.pid)["processes"]
        assert sum(o["backends"]["hugetlb_pages"] for o in found["objects"]) == file["pool_pages"]
        code, output, _ = process.finish()
    assert code == 0 and expected in output and (code, output) == (plain.returncode, plain.stdout)


@pytest.mark.skipif(not IS_SMALL, reason="n/a: several hundred MiB of data")
@pytest.mark.parametrize("bss", ["off", "thp"])
def test_data(builder, prove, thp, bss):
    """The program forks, and its heap grows and shrinks."""
    app = builder.executable("nopie", WORDS)
    prove([app], {app.name: (*ALL, "data")}, options=f"backend=hugetlb,data=thp,bss={bss}")
